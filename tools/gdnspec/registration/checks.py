"""What an operator says of a call that it cannot serve: one line that says what is wrong and what is served."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdnspec.api.dense import SERVED, unlike_dense

LARGEST = (1 << 63) - 1  # of an integer in PyTorch
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # torch computes with no smaller ones
KINDS: dict[str, tuple[tuple[type, ...], str]] = {  # the types of a schema
    "Tensor": ((Tensor,), SERVED),
    "float": ((float, int, torch.SymFloat), "a number"),
    "int": ((int, torch.SymInt), "an integer"),
    "bool": ((bool,), "True or False"),
    "str": ((str,), "a word"),
}


def unlike(operator: Any, args: Sequence[Any]) -> str | None:
    """What is said of the first argument that is not of the type which the operator's schema has."""
    schema = operator._schema
    name = schema.name.partition("::")[2]
    for wanted, x in zip(schema.arguments, args, strict=False):
        kind = str(wanted.type)
        types, served = KINDS[kind.removeprefix("Optional[").removesuffix("]")]
        if x is None and kind.startswith("Optional["):
            continue
        if not isinstance(x, types):
            found = "None" if x is None else f"of the type {type(x).__name__}"
            return f"{name}: {wanted.name} is {found}: {served} is served"
        what = unlike_dense(x) if isinstance(x, Tensor) else None
        if what is not None:
            return f"{name}: {wanted.name} is {what}: {served} is served"
        if types == KINDS["int"][0] and isinstance(x, int) and abs(x) > LARGEST:
            return f"{name}: {wanted.name} is {x:.2g}: an integer of 64 bits is served"
    return None


def constants(operator: Any, places: Sequence[int], args: Sequence[Any]) -> None:
    """Refuses a tensor that wants a gradient at one of these places, where the schema has no tensor: PyTorch would take
    its value, and leave it without a gradient."""
    for i in places:
        if i < len(args) and isinstance(args[i], Tensor) and args[i].requires_grad and torch.is_grad_enabled():
            schema = operator._schema
            name, word = schema.name.partition("::")[2], schema.arguments[i].name
            raise TypeError(f"{name}: {word} requires gradients, and has none: pass {word}.item()")


def tensors(operator: str, floats: dict[str, Tensor | None], integers: dict[str, Tensor | None]) -> None:
    """All tensors on one device, of floating point or integer types as named."""
    given = {name: x for name, x in (floats | integers).items() if x is not None}
    first, home = next(iter(given.items()))
    for name, x in given.items():
        if x.device != home.device:
            raise ValueError(f"{operator}: {name} is on {x.device} and {first} on {home.device}: use one device")
        if name in floats and x.dtype not in FLOATS:
            served = "float16, bfloat16, float32 and float64 are served"
            raise TypeError(f"{operator}: {name} has the type {said(x)}: {served}")
        if name in integers and x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{operator}: {name} has the type {said(x)}: int32 and int64 are served")


def shape(operator: str, name: str, x: Tensor | None, want: tuple[Any, ...], told: str) -> None:
    """The shape of a tensor; None is any size. `told`: the shape that is served, in the names of axes."""
    if x is None:
        return
    if x.dim() != len(want):
        raise ValueError(f"{operator}: {name} has the shape {list(x.shape)}: {told} is served")
    for size, wanted in zip(x.shape, want, strict=True):
        if wanted is not None:
            torch._check_value(size == wanted, lambda: _unlike(operator, name, x, want, told))


def _unlike(operator: str, name: str, x: Tensor, want: tuple[Any, ...], told: str) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in want)
    return f"{operator}: {name} has the shape {list(x.shape)}: {told}, here [{sizes}], is served"


def written(operator: str, name: str, x: Tensor, grad: bool = False) -> None:
    """A tensor that a call writes to. `grad`: as an operation with gradients."""
    if torch._debug_has_internal_overlap(x) == 1:
        said = f"{name} is written to, and elements of it share memory (its strides are {list(x.stride())})"
        raise ValueError(f"{operator}: {said}: a tensor whose elements are apart is served")
    if grad and x.requires_grad and x.is_leaf:
        said = f"{name} is written to, and requires gradients itself, so PyTorch could not go back to it"
        raise ValueError(f"{operator}: {said}: call under torch.no_grad(), or pass {name}.detach()")


def choice(operator: str, name: str, value: str, served: tuple[str, ...]) -> None:
    """An argument that is one of a few words."""
    if value not in served:
        raise ValueError(f"{operator}: {name}={value!r}: {' and '.join(map(repr, served))} are served")


def said(x: Tensor) -> str:
    """The name of a type: bfloat16."""
    return str(x.dtype).removeprefix("torch.")


def by_type(operator: str, name: str, x: Tensor, served: Mapping[torch.dtype, str]) -> str:
    """What stands for the type of a tensor, which on a GPU is one of these."""
    if x.dtype not in served:
        types = " and ".join(str(one).removeprefix("torch.") for one in served)
        raise TypeError(f"{operator}: {name} has the type {said(x)}: on a GPU {types} are served")
    return served[x.dtype]


def starts(operator: str, name: str, x: Tensor, tokens: int) -> list[int]:
    """The values of where sequences start, which are read on a CPU and where gradients are wanted. Rows behind the last
    one belong to no sequence."""
    found: list[int] = x.tolist()
    if found[0] != 0 or found[-1] > tokens or sorted(found) != found:
        raise ValueError(f"{operator}: {name} must rise from 0 and end within the number of tokens, {tokens}")
    return found


def of_sequences(operator: str, name: str, bounds: Tensor | None, *each: Any) -> list[Any]:
    """Of each tensor [tokens, ..] or None the rows of sequences, which start at `bounds`. Those behind are left out,
    whatever they hold: so their gradients are zero. Without bounds, which are checked here, all are of some."""
    if bounds is None:
        return list(each)
    end = starts(operator, name, bounds, each[0].shape[0])[-1]
    return [None if x is None else x[:end] for x in each]


def padded(x: Tensor, rows: int, value: float = 0.0) -> Tensor:
    """x [sequences' tokens, ..] with so many rows: those behind get this value."""
    return x if len(x) == rows else torch.cat([x, x.new_full((rows - len(x), *x.shape[1:]), value)])


# --- values, which are read on a CPU and where PyTorch computes the gradients ------------------------------------


def slots(operator: str, name: str, named: Tensor, count: int, once: bool = False) -> None:
    """Slots of a pool, or -1. `once`: they are written, and no slot twice."""
    wrong = (named < -1) | (named >= count)
    if wrong.any():
        served = f"slots 0 to {count - 1} are served, and -1, which skips a row" if count else "the pool has no slots"
        raise ValueError(f"{operator}: {_first(name, named, wrong)}: {served}")
    if once:
        found = named[named >= 0]
        each, times = found.unique(return_counts=True)
        if len(each) < len(found):
            raise ValueError(f"{operator}: {name} names slot {int(each[times > 1][0])} twice: no slot is written twice")


def skipped(operator: str, first: str, of_rows: Tensor, name: str, others: Tensor) -> None:
    """A row is skipped by all of its slots or by none."""
    wrong = (others < 0) != (of_rows < 0).reshape(-1, *[1] * (others.dim() - 1))
    if wrong.any():
        row = int(wrong.nonzero()[0, 0])
        said = f"{first}[{row}] is {int(of_rows[row])} and {_first(name, others, wrong)}"
        raise ValueError(f"{operator}: {said}: a row is skipped by -1 in all of its slots")


def apart(operator: str, first: str, read: Tensor, name: str, written: Tensor, count: int) -> None:
    """No row reads a slot that another row writes. Both have been checked before."""
    writes, reads = (written >= 0).nonzero()[:, 0], (read >= 0).nonzero()[:, 0]
    writer = torch.full((count,), -1, device=read.device).index_put((written[written >= 0].long(),), writes)
    owner = writer[read[reads].long()]
    wrong = ((owner >= 0) & (owner != reads)).nonzero()[:, 0]
    if len(wrong):
        reader = int(reads[wrong[0]])
        said = f"{first}[{reader}] is {int(read[reader])}, which row {int(owner[wrong[0]])} has in {name}"
        raise ValueError(f"{operator}: {said}: no row reads a slot that another row writes")


def counts(operator: str, name: str, x: Tensor, most: int) -> None:
    """Counts from 0 to `most`."""
    wrong = (x < 0) | (x > most)
    if wrong.any():
        raise ValueError(f"{operator}: {_first(name, x, wrong)}: 0 to {most} are served")


def _first(name: str, x: Tensor, wrong: Tensor) -> str:
    """The first wrong element: slots[2] is 7."""
    place = wrong.nonzero()[0].tolist()
    return f"{name}{place} is {int(x[tuple(place)])}"
