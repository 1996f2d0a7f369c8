"""Every symmetry that a definition declares holds exactly on the reference: a check without tolerance."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import applies, definition, definitions, presets
from gdnspec.model.definition import Symmetry
from gdnspec.model.expression import Expression
from helpers_unit import GQA, GVA, arguments, drawn, run_reference
from torch import Tensor

Case = tuple[str, str, str]


def cases() -> Iterator[Case]:
    """(definition, preset, symmetry) wherever the symmetry is said to hold."""
    for name, found in definitions().items():
        for preset in (GVA, GQA, "synthetic-gva-2x6-d128", "synthetic-gva-1x2-d120"):
            if not applies(presets()[preset], found.definition):
                continue
            scope = found.definition.bind(presets()[preset].axes)
            for symmetry in found.definition.symmetries:
                if Expression(symmetry.when).holds(scope):
                    yield name, preset, symmetry.name


CASES = list(cases())


@cache
def call(name: str, preset: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Random inputs in float32, and the reference's outputs."""
    found = definition(name)
    keywords = arguments(found, drawn(found, preset), torch.float32)
    return keywords, run_reference(found, keywords)


def transformation(symmetry: Symmetry, size: int, groups: int) -> Callable[[Tensor, int], Tensor]:
    """What to do to dimension `dim` of a tensor; the same random choice for every tensor of a call."""
    generator = torch.Generator().manual_seed(5)
    if symmetry.transform == "permute":
        part = size // groups
        index = torch.cat([group * part + torch.randperm(part, generator=generator) for group in range(groups)])
        if torch.equal(index, torch.arange(size)):
            index = torch.arange(size).reshape(groups, part).flip(1).reshape(-1)
        return lambda x, dim: x.index_select(dim, index)
    if symmetry.transform == "flip_sign":
        factor = torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1
    else:
        factor = 2.0 ** torch.randint(-4, 5, (size,), generator=generator)
    assert not factor.eq(1).all()
    return lambda x, dim: x * factor.reshape(-1, *[1] * (x.ndim - dim - 1))


def differing(name: str, preset: str, symmetry: Symmetry) -> list[str]:
    """The outputs that do not do what the symmetry says."""
    found = definition(name)
    keywords, outputs = call(name, preset)
    groups = Expression(symmetry.groups).evaluate(found.definition.bind(presets()[preset].axes))
    values = {**{k: v for k, v in keywords.items() if isinstance(v, Tensor)}, **outputs}
    sizes = {values[tensor].shape[dim] for tensor, dim in symmetry.dimension.items()}
    assert len(sizes) == 1, "the same indices are meant in every tensor"
    transform = transformation(symmetry, sizes.pop(), groups)
    changed = {k: transform(values[k], dim) for k, dim in symmetry.dimension.items()}
    got = run_reference(found, keywords | {k: x for k, x in changed.items() if k in keywords})
    return [output for output in outputs if not torch.equal(got[output], changed.get(output, outputs[output]))]


def declared(name: str, symmetry: str) -> Symmetry:
    return next(s for s in definition(name).definition.symmetries if s.name == symmetry)


def test_every_declared_symmetry_is_tried() -> None:
    tried = {(name, symmetry) for name, _, symmetry in CASES}
    assert tried == {(name, s.name) for name, found in definitions().items() for s in found.definition.symmetries}
    assert {(name, preset) for name, preset, _ in CASES} >= {
        ("gdn_prefill_k_last", GQA),
        ("gdn_prefill_k_first", GQA),
        *((name, GVA) for name in definitions()),
    }


@pytest.mark.parametrize(("name", "preset", "symmetry"), CASES)
def test_a_declared_symmetry_holds_exactly(name: str, preset: str, symmetry: str) -> None:
    assert differing(name, preset, declared(name, symmetry)) == []


@pytest.mark.parametrize(("name", "preset", "symmetry"), CASES)
def test_no_tensor_can_be_left_out_of_a_symmetry(name: str, preset: str, symmetry: str) -> None:
    """Leaving out any one, such as the state when key channels are flipped, makes it wrong: none is declared idly."""
    whole = declared(name, symmetry)
    for tensor in whole.dimension:
        rest = {k: dim for k, dim in whole.dimension.items() if k != tensor}
        assert differing(name, preset, whole.model_copy(update={"dimension": rest})), tensor


@pytest.mark.parametrize("name", sorted(definitions()))
def test_the_state_layout_of_a_symmetry_matters(name: str) -> None:
    """Taking keys for values in the state, as a confusion of k_first and k_last does, is noticed."""
    whole = declared(name, "flip_key_channels")
    swapped = {k: 5 - dim if "state" in k else dim for k, dim in whole.dimension.items()}
    assert differing(name, GVA, whole.model_copy(update={"dimension": swapped}))


def test_a_permutation_across_groups_is_no_symmetry() -> None:
    within = declared("gdn_prefill_k_last", "permute_value_heads_in_group")
    assert differing("gdn_prefill_k_last", GVA, within.model_copy(update={"groups": "1"}))
