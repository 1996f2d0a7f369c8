"""Draws the symmetries of a definition at random: new content whose correct answer follows from the first call."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Symmetry
from gdnspec.model.expression import parse
from gdnspec.numerics.torch_arrays import comparable, movable, times

POWERS = 4  # scale by 2^-4 to 2^4: far from the limits of every type
# Below this, scaling by a power of two may lose bits: one of the two values may have been subnormal on the way.
VANISHING = 2.0**-100


Along = tuple[int, Tensor]  # a dimension of a tensor, and a value for each of its indices


@dataclass(frozen=True, eq=False)
class Transformation:
    """One symmetry and its effect on each tensor that it names. `factors` multiply along a dimension: [size], or
    [count, size] for `count` calls. `indices` say which index each index is taken from."""

    symmetry: Symmetry
    factors: Mapping[str, Along] = field(default_factory=dict)
    indices: Mapping[str, Along] = field(default_factory=dict)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors, with the symmetry applied to those that it names: inputs or outputs, on any device."""
        return {name: self._one(name, x) for name, x in tensors.items()}

    def undo(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The exact inverse of `apply`."""
        return self.inverse().apply(tensors)

    def of_call(self, i: int) -> "Transformation":
        """The transformation of call `i`, if factors were drawn for many calls."""
        return replace(self, factors={name: (at, x[i]) for name, (at, x) in self.factors.items()})

    def inverse(self) -> "Transformation":
        """The transformation that undoes this one."""
        return Transformation(
            self.symmetry,
            {name: (at, 1 / factor) for name, (at, factor) in self.factors.items()},
            {name: (at, torch.argsort(index)) for name, (at, index) in self.indices.items()},
        )

    def _one(self, name: str, x: Tensor) -> Tensor:
        if name in self.indices:
            dimension, index = self.indices[name]
            x = movable(x).index_select(dimension, index.to(x.device)).view(x.dtype)
        if name in self.factors:
            dimension, factor = self.factors[name]
            x = times(x, factor.to(x.device).reshape(-1, *[1] * (x.dim() - dimension - 1)))
        return x


def draw(
    definition: Definition, scope: Scope, generator: torch.Generator, count: int | None = None, *, moved: bool = False
) -> list[Transformation]:
    """Every symmetry that applies to these axes, each with its own random choice. With `count`, factors are drawn for
    so many calls, [count, size], but a permutation is the same for all. With `moved`, no permutation of two or more
    indices is the identity. Tensors are on the generator's device."""
    drawn = (_draw(definition, symmetry, scope, generator, count, moved) for symmetry in definition.symmetries)
    return [one for one in drawn if one is not None]


def _draw(
    definition: Definition, symmetry: Symmetry, scope: Scope, generator: torch.Generator, count: int | None, moved: bool
) -> Transformation | None:
    sizes = definition.symmetry_sizes(symmetry, scope)
    if not sizes:
        return None
    size, device = sizes[0], generator.device
    if symmetry.transform == "permute":
        groups = int(parse(symmetry.groups).evaluate(scope))
        index = _order(groups, size // groups, generator, moved)
        return Transformation(symmetry, indices=_along(definition, symmetry, scope, index))
    if symmetry.transform == "scale_groups":
        size = int(parse(symmetry.groups).evaluate(scope))
    shape = (size,) if count is None else (count, size)
    if symmetry.transform == "flip_sign":
        factor = torch.randint(0, 2, shape, generator=generator, device=device) * 2.0 - 1
    else:
        factor = 2.0 ** torch.randint(-POWERS, POWERS + 1, shape, generator=generator, device=device)
    return Transformation(symmetry, factors=_along(definition, symmetry, scope, factor))


def _order(groups: int, part: int, generator: torch.Generator, moved: bool) -> Tensor:
    """For each of `groups` * `part` indices, the index in the same group that it is taken from."""
    orders = [torch.randperm(part, generator=generator, device=generator.device) for _ in range(groups)]
    index = torch.cat([group * part + order for group, order in enumerate(orders)])
    if moved and torch.equal(index, torch.arange(len(index), device=index.device)):
        # Half of the permutations of two heads are the identity, and a call with nothing moved tests nothing.
        return index.view(groups, part).roll(1, dims=1).flatten()
    return index


def _along(definition: Definition, symmetry: Symmetry, scope: Scope, x: Tensor) -> dict[str, Along]:
    """`x` (factors or indices) for each tensor. Effects on parts of a tensor are combined along their dimension."""
    found: dict[str, Along] = {}
    for name, dimension in symmetry.dimension.items():
        within = definition.within(name, scope)
        if within is None:
            found[name] = (dimension, _of_groups(x, definition.size_along(name, dimension, scope), symmetry))
            continue
        tensor, at, part, shapes = within
        if not at <= dimension < at + len(shapes[part]):  # a dimension before or after the packed one
            found[tensor] = (dimension if dimension < at else dimension - len(shapes[part]) + 1, x)
            continue
        if tensor not in found:
            found[tensor] = (at, _nothing(sum(map(prod, shapes.values())), x, symmetry))
        start = sum(prod(shapes[other]) for other in list(shapes)[: list(shapes).index(part)])
        inside = slice(start, start + prod(shapes[part]))
        found[tensor][1][..., inside] = _spread(x, shapes[part], dimension - at, symmetry, start)
    return found


def _of_groups(x: Tensor, size: int, symmetry: Symmetry) -> Tensor:
    """Factors of groups as factors of indices: [.., groups] -> [.., size]. Others stay as they are."""
    return x.repeat_interleave(size // x.shape[-1], dim=-1) if symmetry.transform == "scale_groups" else x


def _nothing(size: int, like: Tensor, symmetry: Symmetry) -> Tensor:
    """Factors or indices that change nothing."""
    if symmetry.transform == "permute":
        return torch.arange(size, device=like.device)
    return torch.ones(*like.shape[:-1], size, device=like.device)


def _spread(x: Tensor, shape: tuple[int, ...], dimension: int, symmetry: Symmetry, start: int) -> Tensor:
    """For each element of a part, flattened: its factor, or its source index in the packed dimension."""
    if symmetry.transform == "permute":
        places = torch.arange(prod(shape), device=x.device).reshape(shape)
        return start + places.index_select(dimension, x).flatten()
    shaped = x.reshape(*x.shape[:-1], *[1] * dimension, -1, *[1] * (len(shape) - dimension - 1))
    return shaped.expand(*x.shape[:-1], *shape).flatten(-len(shape))


def apply_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Applies all in order. It handles one tensor at a time, because memory may have room for few copies."""
    return {name: _through(transformations, name, x) for name, x in tensors.items()}


def undo_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undoes `apply_all`."""
    return taken_back(transformations, dict(tensors))


def taken_back(transformations: list[Transformation], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Like `undo_all`, but removes each tensor from `tensors` when its turn comes, to free its memory early."""
    inverses = [transformation.inverse() for transformation in reversed(transformations)]
    return {name: _through(inverses, name, tensors.pop(name)) for name in list(tensors)}


def _through(transformations: list[Transformation], name: str, x: Tensor) -> Tensor:
    for transformation in transformations:
        x = transformation.apply({name: x})[name]
    return x


def same_values(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs have equal values: +0 equals -0, and vanishing values equal zero. NaN equals nothing."""
    if not a.is_floating_point():
        return a == b
    a, b = comparable(a), comparable(b)
    return (a == b) | ((a.abs() < VANISHING) & (b.abs() < VANISHING))
