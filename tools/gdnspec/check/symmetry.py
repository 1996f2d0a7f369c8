"""The exact symmetries of a definition, drawn at random: new content whose right answer is known at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Symmetry
from gdnspec.model.expression import parse

POWERS = 4  # scaled by 2^-4 to 2^4: far from the ends of every type
# Below this, a value may have lost bits as a subnormal number on its way, on one of two sides that a power of two
# sets apart.
VANISHING = 2.0**-100


Along = tuple[int, Tensor]  # a dimension of a tensor, and what each of its indices is given


@dataclass(frozen=True, eq=False)
class Transformation:
    """One symmetry, with what it does to each tensor that it names: `factors` multiply along a dimension, [size], or
    [count, size] for so many calls; `indices` say where each index is taken from."""

    symmetry: Symmetry
    factors: Mapping[str, Along] = field(default_factory=dict)
    indices: Mapping[str, Along] = field(default_factory=dict)

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors, those that the symmetry names changed. Inputs or outputs, on any device."""
        return {name: self._one(name, x) for name, x in tensors.items()}

    def undo(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `apply`; exact."""
        return self.inverse().apply(tensors)

    def of_call(self, i: int) -> "Transformation":
        """Of factors drawn for many calls, those of one."""
        return replace(self, factors={name: (at, x[i]) for name, (at, x) in self.factors.items()})

    def inverse(self) -> "Transformation":
        """What undoes it."""
        return Transformation(
            self.symmetry,
            {name: (at, 1 / factor) for name, (at, factor) in self.factors.items()},
            {name: (at, torch.argsort(index)) for name, (at, index) in self.indices.items()},
        )

    def _one(self, name: str, x: Tensor) -> Tensor:
        if name in self.indices:
            dimension, index = self.indices[name]
            x = x.index_select(dimension, index.to(x.device))
        if name in self.factors:
            dimension, factor = self.factors[name]
            x = x * factor.to(device=x.device, dtype=x.dtype).reshape(-1, *[1] * (x.dim() - dimension - 1))
        return x


def draw(
    definition: Definition, scope: Scope, generator: torch.Generator, count: int | None = None, *, moved: bool = False
) -> list[Transformation]:
    """Every symmetry that holds with these axes, each with a choice of its own. With `count`, factors are drawn so many
    times, [count, size], for so many calls; a permutation is one for all of them. With `moved`, no permutation leaves
    all where it is, but of one alone. On the generator's device."""
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
    shape = (size,) if count is None else (count, size)
    if symmetry.transform == "flip_sign":
        factor = torch.randint(0, 2, shape, generator=generator, device=device) * 2.0 - 1
    else:
        factor = 2.0 ** torch.randint(-POWERS, POWERS + 1, shape, generator=generator, device=device)
    return Transformation(symmetry, factors=_along(definition, symmetry, scope, factor))


def _order(groups: int, part: int, generator: torch.Generator, moved: bool) -> Tensor:
    """Where each of `groups` times `part` indices is taken from, within its group."""
    orders = [torch.randperm(part, generator=generator, device=generator.device) for _ in range(groups)]
    index = torch.cat([group * part + order for group, order in enumerate(orders)])
    if moved and torch.equal(index, torch.arange(len(index), device=index.device)):
        # Two heads are drawn in their own order half of the time, and a call with nothing moved shows nothing.
        return index.view(groups, part).roll(1, dims=1).flatten()
    return index


def _along(definition: Definition, symmetry: Symmetry, scope: Scope, x: Tensor) -> dict[str, Along]:
    """`x`, factors or an index, for each tensor; what it does to parts of one, along the dimension that they share."""
    found: dict[str, Along] = {}
    for name, dimension in symmetry.dimension.items():
        within = definition.within(name, scope)
        if within is None:
            found[name] = (dimension, x)
            continue
        tensor, at, part, shapes = within
        if not at <= dimension < at + len(shapes[part]):  # one that all parts have, in front of theirs or behind
            found[tensor] = (dimension if dimension < at else dimension - len(shapes[part]) + 1, x)
            continue
        if tensor not in found:
            found[tensor] = (at, _nothing(sum(map(prod, shapes.values())), x, symmetry))
        start = sum(prod(shapes[other]) for other in list(shapes)[: list(shapes).index(part)])
        inside = slice(start, start + prod(shapes[part]))
        found[tensor][1][..., inside] = _spread(x, shapes[part], dimension - at, symmetry, start)
    return found


def _nothing(size: int, like: Tensor, symmetry: Symmetry) -> Tensor:
    """What leaves all as it is."""
    if symmetry.transform == "permute":
        return torch.arange(size, device=like.device)
    return torch.ones(*like.shape[:-1], size, device=like.device)


def _spread(x: Tensor, shape: tuple[int, ...], dimension: int, symmetry: Symmetry, start: int) -> Tensor:
    """For each element of a part, flat: its factor, or where in the packed dimension it is taken from."""
    if symmetry.transform == "permute":
        places = torch.arange(prod(shape), device=x.device).reshape(shape)
        return start + places.index_select(dimension, x).flatten()
    shaped = x.reshape(*x.shape[:-1], *[1] * dimension, -1, *[1] * (len(shape) - dimension - 1))
    return shaped.expand(*x.shape[:-1], *shape).flatten(-len(shape))


def apply_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One after the other; a tensor at a time, for two copies of one may be all that there is room for."""
    return {name: _through(transformations, name, x) for name, x in tensors.items()}


def undo_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `apply_all` did, undone."""
    return taken_back(transformations, dict(tensors))


def taken_back(transformations: list[Transformation], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As `undo_all`; each tensor leaves `tensors` when its turn comes, so that its memory is free soon."""
    inverses = [transformation.inverse() for transformation in reversed(transformations)]
    return {name: _through(inverses, name, tensors.pop(name)) for name in list(tensors)}


def _through(transformations: list[Transformation], name: str, x: Tensor) -> Tensor:
    for transformation in transformations:
        x = transformation.apply({name: x})[name]
    return x


def same_values(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs agree as values: +0 is -0, and what vanishes is zero. NaN agrees with nothing."""
    if not a.is_floating_point():
        return a == b
    return (a == b) | ((a.abs() < VANISHING) & (b.abs() < VANISHING))
