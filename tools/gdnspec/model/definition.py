"""A definition: the contract of one operator. Loaded from definitions/<family>/<name>/definition.json."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from gdnspec.model import codes, roles
from gdnspec.model.base import Model, Version1
from gdnspec.model.dtypes import INTEGERS, SIZES
from gdnspec.model.elements import (
    COLUMN,
    STRIDED,
    Axis,
    ConstAxis,
    Constraint,
    Conventions,
    DerivedAxis,
    Function,
    Name,
    Part,
    Parts,
    Scope,
    SecondReference,
    Size,
    Stage,
    Symmetry,
    Tensor,
    Text,
    VarAxis,
    Version,
    Within,
)
from gdnspec.model.errors import PlacedError, nearest
from gdnspec.model.expression import Expression, ExpressionError, parse
from gdnspec.model.values import amount, finite, truth, whole


class Definition(Model):
    """The contract of one operator.

    `version` is raised when the meaning changes; traces and verdicts name it. `blocks` is an expression of `length`:
    how many blocks a sequence has. It is given if an output depends on the position of a token in its block; the judge
    then cuts sequences only between blocks. `extends` names the definition whose file holds what this file leaves out.
    This model always holds the whole definition."""

    schema_version: Version1
    name: Name
    version: Version = 1
    family: Name
    stage: Stage
    description: Text
    conventions: Conventions
    axes: Annotated[list[Axis], Field(min_length=1)]
    inputs: Annotated[list[Tensor], Field(min_length=1)]
    outputs: list[Tensor]
    constraints: list[Constraint]
    flops: str
    blocks: str | None = None
    symmetries: list[Symmetry]
    reference: Function
    second_reference: SecondReference | None = None
    extends: Annotated[Name | None, Field(exclude=True)] = None

    @field_validator("inputs", "outputs", "axes")
    @classmethod
    def _distinct(cls, items: list[Any]) -> list[Any]:
        seen: set[str] = set()
        for i, item in enumerate(items):
            if item.name in seen:
                raise PlacedError(f"/{i}/name", f"{item.name!r} occurs twice: choose another name")
            seen.add(item.name)
        return items

    @model_validator(mode="after")
    def _consistent(self) -> "Definition":
        axes = {axis.name for axis in self.axes}
        earlier: set[str] = set()
        for i, axis in enumerate(self.axes):
            if isinstance(axis, DerivedAxis):
                self._expression(f"/axes/{i}/expression", axis.expression, earlier, "an axis named before it")
                self._check_parts(f"/axes/{i}", axis.parts, axes)
                for k, part in enumerate(axis.parts or []):
                    if part.draw is not None:
                        raise PlacedError(f"/axes/{i}/parts/{k}/draw", "a part of an axis has no `draw`: leave it out")
            earlier.add(axis.name)
        for side in ("inputs", "outputs"):
            for i, tensor in enumerate(getattr(self, side)):
                self._check_tensor(f"/{side}/{i}", tensor, axes, output=side == "outputs")
        self._check_indices()
        inputs, outputs = ({tensor.name for tensor in side} for side in (self.inputs, self.outputs))
        parts = {part.name for tensor in (*self.inputs, *self.outputs) for part in tensor.parts or []}
        for side, clash, what in (
            ("inputs", inputs & axes, "an axis"),
            ("outputs", outputs & axes, "an axis"),
            ("outputs", outputs & inputs, "an input"),
            ("inputs", parts & (inputs | outputs | axes), "a tensor or an axis"),
        ):
            if clash:
                raise PlacedError(f"/{side}", f"{sorted(clash)[0]!r} is already the name of {what}")
        for i, constraint in enumerate(self.constraints):
            at = f"/constraints/{i}/expression"
            self._expression(at, constraint.expression, self._scope_names, "an axis or value")
        self._expression("/flops", self.flops, axes, "an axis")
        roles.check(self)
        for i, symmetry in enumerate(self.symmetries):
            self._check_symmetry(f"/symmetries/{i}", symmetry, axes)
        return self

    @staticmethod
    def _expression(pointer: str, text: str, names: "set[str] | frozenset[str]", what: str) -> None:
        try:
            expression = parse(text)
        except ExpressionError as error:
            raise PlacedError(pointer, str(error)) from None
        for name in sorted(expression.names - names):
            raise PlacedError(pointer, f"{name!r} is not {what}", nearest(name, names))

    def _check_tensor(self, pointer: str, tensor: Tensor, axes: set[str], output: bool) -> None:
        for j, size in enumerate(tensor.shape or []):
            if isinstance(size, str):
                self._expression(f"{pointer}/shape/{j}", size, axes, "an axis")
        self._check_parts(pointer, tensor.parts, axes)
        if output and (tensor.optional or tensor.default or tensor.mutates or tensor.is_scalar):
            raise PlacedError(pointer, "an output must be a tensor that is neither optional nor mutated")
        if tensor.mutates and (tensor.optional or tensor.is_scalar or tensor.parts or tensor.dtype in INTEGERS):
            raise PlacedError(pointer, "a mutated input must be a tensor of floats that is neither optional nor packed")
        if tensor.optional != (tensor.default is not None):
            raise PlacedError(pointer, "an optional input needs a default, and no other input may have one")
        if tensor.default is not None:
            self._expression(f"{pointer}/default", tensor.default, axes, "an axis")
        if tensor.traffic is not None:
            self._expression(f"{pointer}/traffic", tensor.traffic, axes, "an axis")
        least = STRIDED.get(tensor.strides or "", 0)
        if tensor.strides is not None and (output or tensor.mutates or len(tensor.shape or []) < least):
            message = f"only an input that is not mutated and has at least {least} dimensions may have strides"
            raise PlacedError(f"{pointer}/strides", message)
        says = {"draw": tensor.draw} | {f"parts/{i}/draw": part.draw for i, part in enumerate(tensor.parts or [])}
        for key, draw in says.items():
            if draw is not None and (output or not tensor.is_drawn or (key == "draw" and tensor.parts)):
                message = "only an input tensor of floats has `draw`; if it is packed, each part has its own"
                raise PlacedError(f"{pointer}/{key}", message)
        if tensor.domain is not None:
            low, high = tensor.domain
            if low is not None and high is not None and low > high:
                raise PlacedError(f"{pointer}/domain", f"the lower bound {low} is above the upper bound {high}")

    def _check_parts(self, pointer: str, parts: Parts, axes: set[str]) -> None:
        for i, part in enumerate(parts or []):
            if part.name in {other.name for other in (parts or [])[:i]}:
                raise PlacedError(f"{pointer}/parts/{i}/name", f"{part.name!r} occurs twice: choose another name")
            for j, size in enumerate(part.shape):
                if isinstance(size, str):
                    self._expression(f"{pointer}/parts/{i}/shape/{j}", size, axes, "an axis")

    def _check_indices(self) -> None:
        for i, tensor in enumerate(self.inputs):
            if tensor.writes and tensor.indexes is None:
                raise PlacedError(f"/inputs/{i}/writes", "`writes` needs `indexes`: which input does it write to?")
            if tensor.read_if is not None:
                self._expression(f"/inputs/{i}/read_if", tensor.read_if, self._row_names(tensor), "a value of its row")
            if tensor.indexes is None:
                if tensor.read_if is not None:
                    raise PlacedError(f"/inputs/{i}/read_if", "`read_if` needs `indexes`: which input does it read?")
                continue
            if not tensor.is_index or tensor.is_flag:
                message = "only an integer tensor of one or two dimensions may have `indexes`"
                raise PlacedError(f"/inputs/{i}/indexes", message)
            known = {x.name for x in self.inputs if (x.mutates if tensor.writes else x.is_drawn)}
            if tensor.indexes not in known:
                what = f"{tensor.indexes!r} is not {'a mutated input' if tensor.writes else 'a tensor of floats'}"
                raise PlacedError(f"/inputs/{i}/indexes", what, nearest(tensor.indexes, known))

    def _row_names(self, tensor: Tensor) -> set[str]:
        """What `read_if` may name: axes, the column, and integer inputs with one value per row."""
        rows = {other.name for other in self.inputs if other.is_index and other.shape == (tensor.shape or [])[:1]}
        return {axis.name for axis in self.axes} | rows | {COLUMN}

    def _check_symmetry(self, pointer: str, symmetry: Symmetry, axes: set[str]) -> None:
        tensors = self._shapes
        self._expression(f"{pointer}/groups", symmetry.groups, axes, "an axis")
        self._expression(f"{pointer}/when", symmetry.when, axes, "an axis")
        sizes = set()
        for name, dimension in symmetry.dimension.items():
            if name not in tensors:
                raise PlacedError(f"{pointer}/dimension/{name}", f"{name!r} is not a tensor", nearest(name, tensors))
            shape = tensors[name]
            if dimension >= len(shape):
                message = f"{name!r} has no dimension {dimension}: it has {len(shape)}, counted from 0"
                raise PlacedError(f"{pointer}/dimension/{name}", message)
            size = shape[dimension]
            # Two axes of heads may have the same size under different names. Presets decide whether they do.
            sizes.add("heads" if size in self.head_axes else size)
        whole = symmetry.transform == "scale_groups" and symmetry.groups == "1"  # one factor for all indices
        if not sizes or (len(sizes) > 1 and not whole):
            different = ", ".join(map(str, sorted(sizes, key=str)))
            message = f"the dimensions must have one size, not several: {different}" if sizes else "it names no tensor"
            raise PlacedError(f"{pointer}/dimension", message)

    # --- queries ------------------------------------------------------------------------------------------------

    @cached_property
    def _shapes(self) -> dict[str, list[Size]]:
        """What a symmetry may name: every tensor, and every part, whose shape replaces the packed dimension."""
        shapes: dict[str, list[Size]] = {tensor.name: tensor.shape or [] for tensor in (*self.inputs, *self.outputs)}
        for name, (tensor, at, part, _) in self._packed.items():
            shape = tensor.shape or []
            shapes[name] = [*shape[:at], *part.shape, *shape[at + 1 :]]
        return shapes

    @cached_property
    def _packed(self) -> dict[str, tuple[Tensor, int, Part, Tensor | DerivedAxis]]:
        """By the name of a part in symmetries: its tensor, the packed dimension, the part, and what declares it."""
        found: dict[str, tuple[Tensor, int, Part, Tensor | DerivedAxis]] = {}
        axes = {axis.name: axis for axis in self.axes if isinstance(axis, DerivedAxis)}
        for tensor in (*self.inputs, *self.outputs):
            sizes = tensor.shape or []
            found |= {part.name: (tensor, len(sizes) - 1, part, tensor) for part in tensor.parts or []}
            for at, axis in ((at, axes[str(size)]) for at, size in enumerate(sizes) if str(size) in axes):
                found |= {f"{tensor.name}.{part.name}": (tensor, at, part, axis) for part in axis.parts or []}
        return found

    @property
    def judged(self) -> list[Tensor]:
        """The tensors that a call leaves behind: the outputs, then the inputs that it mutates."""
        return [*self.outputs, *(tensor for tensor in self.inputs if tensor.mutates)]

    def written(self, tensor: Tensor, values: Mapping[str, Any]) -> list[int] | None:
        """The indices of a mutated input that a call writes, in order; None: all. `values`: flat integer inputs."""
        names, none = [t.name for t in codes.naming(self, tensor) if t.writes and tensor.mutates], roles.padding(self)
        return sorted({index for name in names for index in values[name] if index > none}) if names else None

    def left(self, tensor: Tensor, scope: Scope) -> tuple[int, ...]:
        """The shape of the judged part of a tensor: all of it, or the written slots of an indexed, mutated input."""
        written, shape = self.written(tensor, scope), self.shape(tensor, scope)
        return shape if written is None else (len(written), *shape[1:])

    @cached_property
    def _scope_names(self) -> frozenset[str]:
        values = {tensor.name for tensor in self.inputs if tensor.is_index or tensor.is_scalar}
        return frozenset({axis.name for axis in self.axes} | values)

    @cached_property
    def leading(self) -> dict[str, int]:
        """For each input that may have gaps: the number of leading dimensions in which a gap may follow each index."""
        return {tensor.name: tensor.spaced for tensor in self.inputs if tensor.spaced is not None}

    @cached_property
    def head_axes(self) -> frozenset[str]:
        return frozenset(axis.name for axis in self.axes if axis.role == "heads")

    def const_axes(self) -> list[str]:
        return [axis.name for axis in self.axes if isinstance(axis, ConstAxis)]

    def var_axes(self) -> list[VarAxis]:
        return [axis for axis in self.axes if isinstance(axis, VarAxis)]

    def input(self, name: str) -> Tensor:
        return next(tensor for tensor in self.inputs if tensor.name == name)

    def bind(self, values: Mapping[str, int]) -> Scope:
        """The const and var axes in `values`, and every derived axis that follows from them. Raises `PlacedError`."""
        scope: Scope = dict(values)
        for name, expression in self._derived:
            if expression.names <= scope.keys():
                try:
                    scope[name] = whole(expression, scope)
                except ExpressionError as error:
                    raise PlacedError("/axes", f"axis {name!r}: {error}") from None
        return scope

    @cached_property
    def _derived(self) -> list[tuple[str, Expression]]:
        return [(axis.name, parse(axis.expression)) for axis in self.axes if isinstance(axis, DerivedAxis)]

    def shape(self, tensor: Tensor, scope: Scope) -> tuple[int, ...]:
        """The sizes of a tensor once the axes are bound; () for a scalar. Raises `ExpressionError`."""
        return tuple(x if isinstance(x, int) else whole(parse(x), scope) for x in tensor.shape or [])

    def senseless(self, scope: Scope) -> Iterator[tuple[str, str]]:
        """The expressions that have no valid value once all axes are bound: (JSON pointer, why)."""
        for pointer, text, read in self._valued:
            try:
                read(parse(text), scope)
            except ExpressionError as error:
                yield pointer, str(error)
                return
        for pointer, packed in self._with_parts:
            try:
                self.part_shapes(packed, scope)
            except ExpressionError as error:
                yield pointer, str(error)

    @cached_property
    def _with_parts(self) -> list[tuple[str, Tensor | DerivedAxis]]:
        """(JSON pointer of the parts, packed tensor or axis)."""
        packed: dict[str, Tensor | DerivedAxis] = {
            f"/axes/{i}/parts": axis for i, axis in enumerate(self.axes) if isinstance(axis, DerivedAxis)
        }
        packed |= {f"/inputs/{i}/parts": tensor for i, tensor in enumerate(self.inputs)}
        return [(pointer, one) for pointer, one in packed.items() if one.parts]

    @cached_property
    def _valued(self) -> list[tuple[str, str, Callable[[Expression, Scope], object]]]:
        """Every expression except axes and constraints: its JSON pointer, its text, and its evaluator."""
        found: list[tuple[str, str | None, Callable[[Expression, Scope], object]]] = [("/flops", self.flops, amount)]
        for side in ("axes", "inputs", "outputs"):
            for i, packed in enumerate(getattr(self, side)):
                for k, part in enumerate(getattr(packed, "parts", None) or []):
                    at = f"/{side}/{i}/parts/{k}/shape"
                    found += [(f"{at}/{j}", str(size), whole) for j, size in enumerate(part.shape)]
        for side in ("inputs", "outputs"):
            for i, tensor in enumerate(getattr(self, side)):
                at = f"/{side}/{i}"
                found += [(f"{at}/shape/{j}", str(size), whole) for j, size in enumerate(tensor.shape or [])]
                found += [(f"{at}/default", tensor.default, truth if tensor.dtype == "bool" else finite)]
                found += [(f"{at}/traffic", tensor.traffic, amount)]
        for i, symmetry in enumerate(self.symmetries):
            found += [(f"/symmetries/{i}/when", symmetry.when, Expression.holds)]
            found += [(f"/symmetries/{i}/groups", symmetry.groups, whole)]
        # The name of an axis is always a size. An expression that occurs more than once is checked once.
        axes = {axis.name for axis in self.axes}
        first: dict[tuple[str, Callable[[Expression, Scope], object]], str] = {}
        for pointer, text, read in found:
            if text is not None and text not in axes:
                first.setdefault((text, read), pointer)
        return [(pointer, text, read) for (text, read), pointer in first.items()]

    def broken(self, scope: Scope) -> Iterator[tuple[int, Constraint, str]]:
        """The constraints that fail: (index, constraint, why). Those with a name that is not bound are skipped."""
        bound = scope.keys()
        for i, (constraint, expression) in enumerate(self._conditions):
            if expression.names <= bound:
                try:
                    if not expression.holds(scope):
                        yield i, constraint, constraint.message
                except ExpressionError as error:
                    yield i, constraint, f"{constraint.message}: {error}"

    @cached_property
    def _conditions(self) -> list[tuple[Constraint, Expression]]:
        return [(constraint, parse(constraint.expression)) for constraint in self.constraints]

    @cached_property
    def mixed_symmetries(self) -> list[Symmetry]:
        """The symmetries whose dimensions have different names: their sizes must be equal once the axes are bound."""
        sizes = [{str(self._shapes[name][at]) for name, at in one.dimension.items()} for one in self.symmetries]
        both = zip(self.symmetries, sizes, strict=True)
        return [one for one, named in both if len(named) > 1 and one.transform != "scale_groups"]

    def symmetry_sizes(self, symmetry: Symmetry, scope: Scope) -> list[int]:
        """The sizes of a symmetry's dimensions, as far as the axes are bound; empty if it does not apply."""
        when = parse(symmetry.when)
        if not (when.names <= scope.keys() and when.holds(scope)):
            return []
        texts = [parse(str(self._shapes[name][dimension])) for name, dimension in symmetry.dimension.items()]
        return [whole(text, scope) for text in texts if text.names <= scope.keys()]

    def size_along(self, name: str, dimension: int, scope: Scope) -> int:
        """The size of a tensor or part along one of its dimensions."""
        return whole(parse(str(self._shapes[name][dimension])), scope)

    def bytes_moved(self, scope: Scope, omitted: "frozenset[str] | set[str]" = frozenset()) -> int:
        """The bytes that a call must move: each input read and each output written once, or what `traffic` says."""
        return sum(
            self.nbytes(t, scope) if t.traffic is None else int(amount(parse(t.traffic), scope))
            for t in self._present(omitted)
        )

    def bytes_held(self, scope: Scope, omitted: "frozenset[str] | set[str]" = frozenset()) -> int:
        """The bytes of all inputs and outputs."""
        return sum(self.nbytes(t, scope) for t in self._present(omitted))

    def _present(self, omitted: "frozenset[str] | set[str]") -> list[Tensor]:
        return [t for t in (*self.inputs, *self.outputs) if t.name not in omitted and not t.is_scalar]

    def nbytes(self, tensor: Tensor, scope: Scope) -> int:
        return SIZES[tensor.dtype] * prod(self.shape(tensor, scope))

    def part_shapes(self, packed: Tensor | DerivedAxis, scope: Scope) -> dict[str, tuple[int, ...]]:
        """The shape of each part of a packed axis, or of the last dimension of a packed tensor. Raises
        `ExpressionError` if the parts do not add up to the size of the axis or dimension."""
        shapes = {
            part.name: tuple(x if isinstance(x, int) else whole(parse(x), scope) for x in part.shape)
            for part in packed.parts or []
        }
        size = scope[packed.name] if isinstance(packed, DerivedAxis) else self.shape(packed, scope)[-1]
        together = sum(map(prod, shapes.values()))
        if shapes and size != together:
            raise ExpressionError(f"{packed.name} has {size} elements per row, but its parts have {together}")
        return shapes

    def within(self, name: str, scope: Scope) -> Within | None:
        """The place of the part that a symmetry names; None if it names a whole tensor. Raises `ExpressionError`."""
        if name not in self._packed:
            return None
        tensor, at, part, packed = self._packed[name]
        return Within(tensor.name, at, part.name, self.part_shapes(packed, scope))
