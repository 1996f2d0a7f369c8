"""The roles of axes, and how the sizes of a batch follow from the lengths of its sequences.

The tools use the `role` of an axis, never its name. In a ragged batch, an input that `bounds` an axis says where the
entries of each sequence are: sequence n has the entries from value [n] to value [n + 1]. Their number follows from the
length of the sequence: one per token, or the axis's `per_sequence`.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from gdnspec.model import codes
from gdnspec.model.errors import PlacedError, nearest
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.values import whole

if TYPE_CHECKING:
    from gdnspec.model.definition import Definition
    from gdnspec.model.elements import Scope, Tensor

Role = Literal["tokens", "sequences", "rows", "drafts", "heads", "slots"]
LENGTH = "length"  # the name that `per_sequence` uses for the number of tokens of a sequence


def axis(definition: "Definition", role: Role) -> str | None:
    """The name of the axis with this role, or None."""
    return next((axis.name for axis in definition.axes if axis.role == role), None)


def pools(definition: "Definition") -> set[str]:
    """The inputs of which a call names slots: those that it updates, and those that it only reads."""
    return {tensor.indexes for tensor in definition.inputs if tensor.indexes is not None}


def padding(definition: "Definition") -> int:
    """The slot that skips a row or sequence. Real slots are larger."""
    return 0 if definition.conventions.padding_slot == "zero" else -1


def heads(definition: "Definition", scope: "Scope") -> int:
    """The largest number of heads under bound axes; 1 if the definition has no heads."""
    return max((int(scope[name]) for name in definition.head_axes), default=1)


def is_state(definition: "Definition", tensor: "Tensor") -> bool:
    """Whether the tensor holds one matrix per head: its vectors are rows of a state, not tokens."""
    return len(tensor.shape or []) >= 3 and (tensor.shape or [])[-3] in definition.head_axes


def bounds(definition: "Definition") -> str | None:
    """The input that bounds the sequences of packed tokens, or None."""
    tokens = axis(definition, "tokens")
    return next((tensor.name for tensor in definition.inputs if tokens and tensor.bounds == tokens), None)


def behind(definition: "Definition", scope: "Scope") -> int | None:
    """The first row of packed tensors that no sequence has; None if all rows belong to sequences."""
    tokens, name = axis(definition, "tokens"), bounds(definition)
    if tokens is None or name is None or not len(scope[name]) or scope[name][-1] >= scope[tokens]:
        return None
    return int(scope[name][-1])


def bounding(definition: "Definition") -> list[str]:
    """The inputs whose values follow from the lengths of sequences."""
    return [tensor.name for tensor in definition.inputs if tensor.bounds is not None]


def counted(definition: "Definition") -> dict[str, str]:
    """Each axis that counts pieces of sequences, and the expression for how many a sequence has."""
    return {axis.name: axis.per_sequence for axis in definition.var_axes() if axis.per_sequence is not None}


def indivisible(definition: "Definition") -> list[str]:
    """Expressions for the number of pieces of a sequence. A sequence may be cut only between two pieces."""
    return [*counted(definition).values(), *([definition.blocks] if definition.blocks is not None else [])]


def count(text: str, length: int, given: Mapping[str, object]) -> int:
    """How many pieces a sequence of `length` tokens has. `given`: the scalars and sizes that the expression uses.
    Raises `ExpressionError`."""
    return whole(parse(text), {**given, LENGTH: length})


def starts(definition: "Definition", lengths: Sequence[int], given: Mapping[str, object]) -> dict[str, list[int]]:
    """The values of each input that bounds an axis, [sequences + 1]. An input whose values cannot be computed from
    `given` is left out: the check of the workload reports it."""
    pieces, found = counted(definition), {}
    for tensor in definition.inputs:
        if tensor.bounds is None:
            continue
        each: Sequence[int] = lengths
        if tensor.bounds in pieces:
            try:
                each = [count(pieces[tensor.bounds], length, given) for length in lengths]
            except ExpressionError:
                continue
        found[tensor.name] = [0, *accumulate(each)]
    return found


def sizes(definition: "Definition", lengths: Sequence[int], given: Mapping[str, object]) -> dict[str, int]:
    """The sizes of the var axes, except slots, for a batch of sequences with these lengths, or of as many rows of one
    length. Raises `ExpressionError`."""
    by_role: dict[Role, int] = {
        "tokens": sum(lengths), "sequences": len(lengths), "rows": len(lengths), "drafts": max(lengths, default=1),
    }  # fmt: skip
    found = {name: size for role, size in by_role.items() if (name := axis(definition, role)) is not None}
    for name, text in counted(definition).items():
        found[name] = sum(count(text, length, given) for length in lengths)
    return found


def batch(definition: "Definition", axes: Mapping[str, int]) -> int:
    """The number of sequences of a ragged batch, or of rows of another; 0 if the definition has neither."""
    name = axis(definition, "sequences") or axis(definition, "rows")
    return int(axes.get(name, 0)) if name else 0


def tokens(definition: "Definition", axes: Mapping[str, int]) -> int:
    """The number of tokens of all sequences or rows together."""
    packed, drafts = axis(definition, "tokens"), axis(definition, "drafts")
    if packed is not None:
        return int(axes.get(packed, 0))
    return batch(definition, axes) * int(axes.get(drafts, 1) if drafts else 1)


def packed_tokens(definition: "Definition", axes: Mapping[str, int]) -> int:
    """The number of tokens that a reference steps through: those of all sequences, or 1 if rows are not packed."""
    packed = axis(definition, "tokens")
    return 1 if packed is None else int(axes.get(packed, 1))


def piece(definition: "Definition", name: object) -> str | None:
    """The singular name of the pieces that an axis counts; None if it counts no pieces of sequences."""
    return str(name).removeprefix("num_").removesuffix("s") if name in counted(definition) else None


def per_batch(definition: "Definition") -> set[str]:
    """The axes along which a batch can be split."""
    named = (axis(definition, role) for role in ("tokens", "sequences", "rows"))
    return {name for name in named if name is not None} | counted(definition).keys()


def of_all(definition: "Definition", tensor: "Tensor") -> bool:
    """Whether an output belongs to no sequence or row: the gradient of a parameter, a sum over all of them."""
    return not tensor.mutates and str((tensor.shape or [""])[0]) not in per_batch(definition)


# --- checks of a definition -------------------------------------------------------------------------------------


def check(definition: "Definition") -> None:
    """Raises `PlacedError` if roles contradict each other."""
    _check_axes(definition)
    _check_slots(definition)
    if not definition.judged:
        raise PlacedError("/outputs", "a call leaves nothing behind: name an output, or an input that it mutates")
    codes.check(definition)
    names = {axis.name for axis in definition.axes}
    countable = counted(definition).keys() | {axis(definition, "tokens")}
    for i, tensor in enumerate(definition.inputs):
        for key, over in (("bounds", tensor.bounds), ("counts", tensor.counts), ("earlier", tensor.earlier)):
            if over is None:
                continue
            if over not in names:
                raise PlacedError(f"/inputs/{i}/{key}", f"{over!r} is not an axis", nearest(over, names))
            if not tensor.is_index or tensor.is_flag:
                message = f"only an integer tensor of one or two dimensions may have `{key}`"
                raise PlacedError(f"/inputs/{i}/{key}", message)
        if tensor.bounds is not None and tensor.bounds not in countable:
            message = f"axis {tensor.bounds!r} needs the role tokens or `per_sequence`: this input bounds it"
            raise PlacedError(f"/inputs/{i}/bounds", message)
    if definition.conventions.packing == "ragged" and bounds(definition) is None:
        message = "a ragged definition needs an axis with the role tokens, and an input that bounds it"
        raise PlacedError("/inputs", message)


def _check_slots(definition: "Definition") -> None:
    for i, tensor in enumerate(definition.inputs):
        pool = next((other for other in definition.inputs if other.name == tensor.indexes), None)
        if pool is not None and str((pool.shape or [""])[0]) != axis(definition, "slots"):
            raise PlacedError(f"/inputs/{i}/indexes", f"the first axis of {pool.name!r} needs the role slots")
    for mutated in (tensor for tensor in definition.inputs if tensor.mutates):
        naming = [i for i, tensor in enumerate(definition.inputs) if tensor.indexes == mutated.name]
        if naming and not any(definition.inputs[i].writes for i in naming):
            message = f"no input says which slots of {mutated.name!r} are written, although it is mutated"
            raise PlacedError(f"/inputs/{naming[-1]}", message, 'give the one that does "writes": true')


def _check_axes(definition: "Definition") -> None:
    taken: dict[str, str] = {}
    scalars = {tensor.name for tensor in definition.inputs if tensor.is_scalar}
    known = {LENGTH} | scalars
    var = {axis.name for axis in definition.var_axes()}
    for i, axis_ in enumerate(definition.axes):
        if axis_.role is not None and axis_.role != "heads":
            if axis_.role in taken:
                message = f"axis {taken[axis_.role]!r} already has the role {axis_.role}"
                raise PlacedError(f"/axes/{i}/role", message)
            if axis_.name not in var:
                raise PlacedError(f"/axes/{i}/role", f"only a var axis may have the role {axis_.role}")
            taken[axis_.role] = axis_.name
    for pointer, text in _expressions(definition):
        try:
            unknown = sorted(parse(text).names - known)
        except ExpressionError as error:
            raise PlacedError(pointer, str(error)) from None
        if unknown:
            message = f"{unknown[0]!r} is neither {LENGTH} nor a scalar input"
            raise PlacedError(pointer, message, nearest(unknown[0], known))
        if parse(text).names <= {LENGTH}:
            _check_empty(pointer, text)


def _check_empty(pointer: str, text: str) -> None:
    try:
        of_none = count(text, 0, {})
    except ExpressionError as error:
        raise PlacedError(pointer, f"it has no value at length 0: {error}") from None
    if of_none != 0:
        message = f"it must be 0 at length 0, not {of_none}: an empty sequence has no pieces"
        raise PlacedError(pointer, message, "such as min(length, 1)")


def _expressions(definition: "Definition") -> Iterator[tuple[str, str]]:
    if definition.blocks is not None:
        yield "/blocks", definition.blocks
    pieces = counted(definition)
    for i, axis_ in enumerate(definition.axes):
        if axis_.name in pieces:
            if axis_.role is not None:
                raise PlacedError(f"/axes/{i}/per_sequence", "an axis may have a role or per_sequence, not both")
            yield f"/axes/{i}/per_sequence", pieces[axis_.name]
