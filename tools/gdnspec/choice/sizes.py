"""The axes of a call, from the shapes of its tensors."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdnspec.model.definition import Definition
from gdnspec.model.elements import DerivedAxis, Scope
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import Expression, ExpressionError, parse
from gdnspec.model.values import whole

SIZE = "{size}"  # stands for the size that an expression has
_SAME = re.compile(r"([A-Za-z]\w*) == ([A-Za-z]\w*)")


class _Contradiction(Exception):
    """Two sizes that cannot both be right."""


@dataclass(frozen=True)
class _Equation:
    """`expression` equals `value`, or the axis `name`. `where`: where that is said."""

    expression: Expression
    value: int | None
    name: str
    where: str

    def apply(self, scope: Scope) -> tuple[str, int] | None:
        """An axis that follows under `scope`, with its size. Raises `_Contradiction`."""
        value = scope.get(self.name) if self.value is None else self.value
        unknown = sorted(self.expression.names - scope.keys())
        if not unknown:
            size = whole(self.expression, scope)
            if value is None:
                return self.name, size
            if size != value:
                raise _Contradiction(self.where.replace(SIZE, str(size)))
        elif len(unknown) == 1 and value is not None:
            size_ = self._solved(unknown[0], value, scope)
            return None if size_ is None else (unknown[0], size_)
        return None

    def _solved(self, name: str, value: int, scope: Scope) -> int | None:
        """The size of the only unknown axis, if the expression is linear in it. Raises `_Contradiction`."""
        one, two, three = (whole(self.expression, {**scope, name: x}) for x in (1, 2, 3))
        step = two - one
        if step == 0 or three - two != step:
            return None
        size, rest = divmod(value - one, step)
        if rest or size + 1 < 0:
            raise _Contradiction(self.where.replace(f"{SIZE}, ", ""))
        return size + 1


def sizes(
    definition: Definition,
    shapes: Mapping[str, Sequence[int]],
    needed: Collection[str] = (),
    numbers: Mapping[str, int] | None = None,
) -> Scope:
    """Every axis that follows from the shapes of inputs, and from `numbers`, the inputs that are integers. `needed`:
    axes to try harder for. Raises `SpecError` if they contradict the definition."""
    equations = [*_of_axes(definition, shapes), *_of_shapes(definition, shapes)]
    scope, given = _told(definition, numbers or {})
    try:
        _solve(equations, scope)
    except (_Contradiction, ExpressionError) as error:
        raise SpecError(f"{definition.name}: {error}{given}") from None
    for name in definition.const_axes():
        if given and scope.get(name, 1) < 1:
            raise SpecError(f"{definition.name}: {name} would be {scope[name]}{given}")
    for name in needed:
        if name not in scope:
            scope = _guessed(definition, equations, scope, name)
    for axis in definition.var_axes():
        if scope.get(axis.name, axis.minimum) < axis.minimum:
            raise SpecError(f"{definition.name}: {axis.name} is {scope[axis.name]}, below its minimum {axis.minimum}")
    for _, _, why in definition.broken(scope):
        raise SpecError(f"{definition.name}: {why}, but here {_said(definition, scope)}")
    return scope


def _said(definition: Definition, scope: Scope) -> str:
    return ", ".join(f"{axis.name} is {scope[axis.name]}" for axis in definition.axes if axis.name in scope)


def _of_axes(definition: Definition, shapes: Mapping[str, Sequence[int]]) -> Iterator[_Equation]:
    for axis in definition.axes:
        if isinstance(axis, DerivedAxis):
            where = f"{axis.name} is not {axis.expression}"
            for name, shape in shapes.items():
                wanted = definition.input(name).shape or []
                if axis.name in wanted:
                    at = wanted.index(axis.name)
                    where = f"{name} has shape {_shape(shape)}, whose dimension {at} is not {SIZE}, {axis.expression}"
                    break
            yield _Equation(parse(axis.expression), None, axis.name, where)
    axes = {axis.name for axis in definition.axes}
    for constraint in definition.constraints:
        same = _SAME.fullmatch(constraint.expression)
        if same is not None and {*same.groups()} <= axes:
            yield _Equation(parse(same[1]), None, same[2], constraint.message)


def _told(definition: Definition, numbers: Mapping[str, int]) -> tuple[Scope, str]:
    """The axes that inputs such as head_dim are by a constraint, and how errors name these inputs. Raises `SpecError`
    for one below 1."""
    axes = {axis.name for axis in definition.axes}
    scope, given = Scope(), ""
    for constraint in definition.constraints:
        same = _SAME.fullmatch(constraint.expression)
        for name, axis in [] if same is None else [same.groups(), same.groups()[::-1]]:
            if name in numbers and axis in axes:
                if numbers[name] < 1:
                    raise SpecError(f"{definition.name}: {name} is {numbers[name]}: 1 or more is served")
                scope[axis], given = numbers[name], f"{given}, with {name} = {numbers[name]}"
    return scope, given


def _of_shapes(definition: Definition, shapes: Mapping[str, Sequence[int]]) -> Iterator[_Equation]:
    first: dict[str, str] = {}
    for name, shape in shapes.items():
        wanted = definition.input(name).shape or []
        if len(shape) != len(wanted):
            text = f"{definition.name}: {name} has shape {_shape(shape)} instead of {_shape(wanted)}"
            raise SpecError(text)
        for at, (size, value) in enumerate(zip(wanted, shape, strict=True)):
            where = f"{name} has shape {_shape(shape)}, whose dimension {at} is not {size}"
            where += f" as in {first[str(size)]}" if str(size) in first else ""
            first.setdefault(str(size), f"{name} {_shape(shape)}")
            yield _Equation(parse(str(size)), value, "", where)


def _shape(sizes: Sequence[object]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _solve(equations: Sequence[_Equation], scope: Scope) -> None:
    """Adds what follows to `scope`. Raises `_Contradiction`."""
    before = -1
    while before != len(scope):
        before = len(scope)
        for equation in equations:
            found = equation.apply(scope)
            if found is not None:
                scope[found[0]] = found[1]


def _guessed(definition: Definition, equations: Sequence[_Equation], scope: Scope, name: str) -> Scope:
    """The scope with one more axis, if a single size of one unknown axis agrees with all shapes and constraints."""
    const = [axis for axis in definition.const_axes() if axis not in scope]
    for unknown in const:
        fitting = []
        for size in range(1, max(scope.values(), default=0) + 1):
            one = {**scope, unknown: size}
            try:
                _solve(equations, one)
            except (_Contradiction, ExpressionError):
                continue
            if name in one and not any(definition.broken(one)):
                fitting.append(one)
        if len({tuple(sorted(one.items())) for one in fitting}) == 1:
            return fitting[0]
    return scope
