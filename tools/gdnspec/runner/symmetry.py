"""The exact symmetries of a definition, drawn at random: new content whose right answer is known at once."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.model.definition import Definition, Scope, Symmetry
from gdnspec.model.expression import parse

POWERS = 4  # scaled by 2^-4 to 2^4: far from the ends of every type
# Below this, a value may have lost bits as a subnormal number on its way, on one of two sides that a power of two
# sets apart.
VANISHING = 2.0**-100


@dataclass(frozen=True, eq=False)
class Transformation:
    """One symmetry, with what it does to each index: `factor` multiplies, or `index` says where each is taken from."""

    symmetry: Symmetry
    factor: Tensor | None = None
    index: Tensor | None = None

    def apply(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors, those that the symmetry names changed. Inputs or outputs, on any device."""
        return {name: self._one(name, x) for name, x in tensors.items()}

    def undo(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `apply`; exact."""
        if self.index is not None:
            return Transformation(self.symmetry, index=torch.argsort(self.index)).apply(tensors)
        assert self.factor is not None
        return Transformation(self.symmetry, factor=1 / self.factor).apply(tensors)

    def _one(self, name: str, x: Tensor) -> Tensor:
        dimension = self.symmetry.dimension.get(name)
        if dimension is None:
            return x
        if self.index is not None:
            return x.index_select(dimension, self.index.to(x.device))
        assert self.factor is not None
        factor = self.factor.to(device=x.device, dtype=x.dtype)
        return x * factor.reshape(-1, *[1] * (x.dim() - dimension - 1))


def draw(
    definition: Definition, scope: Scope, generator: torch.Generator, count: int | None = None
) -> list[Transformation]:
    """Every symmetry that holds with these axes, each with a choice of its own. With `count`, factors are drawn so many
    times, [count, size], for so many calls; a permutation is one for all of them. On the generator's device."""
    drawn = (_draw(definition, symmetry, scope, generator, count) for symmetry in definition.symmetries)
    return [one for one in drawn if one is not None]


def _draw(
    definition: Definition, symmetry: Symmetry, scope: Scope, generator: torch.Generator, count: int | None
) -> Transformation | None:
    sizes = definition.symmetry_sizes(symmetry, scope)
    if not sizes:
        return None
    size, device = sizes[0], generator.device
    if symmetry.transform == "permute":
        groups = int(parse(symmetry.groups).evaluate(scope))
        part = size // groups
        index = torch.cat(
            [group * part + torch.randperm(part, generator=generator, device=device) for group in range(groups)]
        )
        return Transformation(symmetry, index=index)
    shape = (size,) if count is None else (count, size)
    if symmetry.transform == "flip_sign":
        return Transformation(symmetry, factor=torch.randint(0, 2, shape, generator=generator, device=device) * 2.0 - 1)
    powers = torch.randint(-POWERS, POWERS + 1, shape, generator=generator, device=device)
    return Transformation(symmetry, factor=2.0**powers)


def apply_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One after the other."""
    result = dict(tensors)
    for transformation in transformations:
        result = transformation.apply(result)
    return result


def undo_all(transformations: list[Transformation], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `apply_all` did, undone."""
    result = dict(tensors)
    for transformation in reversed(transformations):
        result = transformation.undo(result)
    return result


def same_values(a: Tensor, b: Tensor) -> Tensor:
    """Where two outputs agree as values: +0 is -0, and what vanishes is zero. NaN agrees with nothing."""
    if not a.is_floating_point():
        return a == b
    return (a == b) | ((a.abs() < VANISHING) & (b.abs() < VANISHING))
