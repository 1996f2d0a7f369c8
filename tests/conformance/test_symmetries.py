"""Every symmetry that a definition declares holds on the reference, exactly but where it says that sums change their
order; and what the judge does with them leaves nothing that a call makes as it was."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import Found, applies, definition, definitions, presets
from gdnspec.catalog.workloads import workloads
from gdnspec.check.second import further
from gdnspec.check.symmetry import Transformation, apply_all, draw, same_values, undo_all
from gdnspec.inputs.materialise import materialise
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Symmetry
from gdnspec.model.expression import Expression
from gdnspec.numerics.pools import integers, left
from helpers_unit import GQA, GVA, arguments, drawn, run_reference
from sampled import one_in
from torch import Tensor

Case = tuple[str, str, str]
# As many value heads as key heads. PyTorch takes the end of a row by another exponential than whole vectors, and rows
# of heads of 120 have one: no place for what is exact.
MHA, MHA_WITH_ENDS = "synthetic-mha-2x2-d64", "synthetic-mha-2x2-d120"
GQA_OF_TWO_SIZES = "synthetic-gqa-4x2-k64-v96"
LARGER = ("synthetic-gva-2x6-d128", "synthetic-gva-1x2-d120")


def cases() -> Iterator[Case]:
    """(definition, preset, symmetry) wherever the symmetry is said to hold."""
    for name, found in definitions().items():
        for preset in (GVA, GQA, GQA_OF_TWO_SIZES, MHA, MHA_WITH_ENDS, *LARGER):
            if preset not in found.family.presets or not applies(presets()[preset], found.definition):
                continue
            scope = found.definition.bind(presets()[preset].axes)
            for symmetry in found.definition.symmetries:
                if Expression(symmetry.when).holds(scope) and worth_trying(symmetry, preset):
                    yield name, preset, symmetry.name


def worth_trying(symmetry: Symmetry, preset: str) -> bool:
    """What holds with any heads need not be tried with as many value heads as key heads."""
    return preset not in (MHA, MHA_WITH_ENDS) or (
        symmetry.when != "True" and not (symmetry.exact and preset == MHA_WITH_ENDS)
    )


CASES = list(cases())
# Heads as most models have them, for every definition; with others in a thorough run, and here for what differs most.
OTHERWISE = ("gdn_prefill_k_last", "gdn_prefill_checkpoints", "gdn_layer_prefill", "gdn_verify_k_last")

# Of four definitions with every preset, of the others every other case.
USUAL = [case for case in CASES if case[1] == GVA or case[0] in OTHERWISE]
QUICK = {*USUAL[::2], *(case for case in USUAL if case[0] in OTHERWISE)}
HOLDING = [pytest.param(*case, marks=[pytest.mark.thorough] * (case not in QUICK)) for case in CASES]
LEFT_OUT = [
    pytest.param(*case, marks=[pytest.mark.thorough] * (case[1] != GVA or i % 8 > 0)) for i, case in enumerate(CASES)
]


@cache
def call(name: str, preset: str, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Random inputs, and the reference's outputs."""
    found = definition(name)
    keywords = arguments(found, drawn(found, preset), dtype)
    return keywords, run_reference(found, keywords)


def same(got: Tensor, wanted: Tensor, exact: bool) -> bool:
    """Equal as values; in float64, but for the order of sums."""
    return bool(same_values(got, wanted).all()) if exact else torch.allclose(got, wanted, rtol=1e-9, atol=1e-12)


def precision(exact: bool) -> torch.dtype:
    """In which a symmetry is tried: float32, where every rounding shows, or where none does."""
    return torch.float32 if exact else torch.float64


def chosen(own: Definition, symmetry: Symmetry, scope: Scope) -> Transformation:
    """A choice of this symmetry that changes something, the same at every run."""
    alone = own.model_copy(update={"symmetries": [symmetry]})
    for seed in range(100):
        (one,) = draw(alone, scope, torch.Generator().manual_seed(seed))
        idle = all(torch.equal(index, torch.arange(len(index))) for _, index in one.indices.values())
        if not idle or any(bool(factor.ne(1).any()) for _, factor in one.factors.values()):
            return one
    raise AssertionError(f"{symmetry.name} changes nothing")


def differing(name: str, preset: str, symmetry: Symmetry) -> list[str]:
    """The outputs that do not do what the symmetry says."""
    found = definition(name)
    keywords, outputs = call(name, preset, precision(symmetry.exact))
    scope = drawn(found, preset).scope
    one = chosen(found.definition, symmetry, scope)
    tensors = {k: v for k, v in keywords.items() if isinstance(v, Tensor)}
    got = run_reference(found, keywords | one.apply(tensors))
    wanted = one.apply(outputs)
    return [output for output in outputs if not same(got[output], wanted[output], symmetry.exact)]


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


@pytest.mark.parametrize(("name", "preset", "symmetry"), HOLDING)
def test_a_declared_symmetry_holds(name: str, preset: str, symmetry: str) -> None:
    assert differing(name, preset, declared(name, symmetry)) == []


@pytest.mark.parametrize(("name", "preset", "symmetry"), LEFT_OUT)
def test_no_tensor_can_be_left_out_of_a_symmetry(name: str, preset: str, symmetry: str) -> None:
    """Leaving out any one, such as the state when key channels are flipped, makes it wrong: none is declared idly."""
    whole = declared(name, symmetry)
    for tensor in whole.dimension:
        rest = {k: dim for k, dim in whole.dimension.items() if k != tensor}
        assert differing(name, preset, whole.model_copy(update={"dimension": rest})), tensor


WITH_STATES = sorted(
    {
        name
        for name, _, symmetry in CASES
        if symmetry == "flip_key_channels"
        and definition(name).definition.conventions.state_layout != "none"
        and definition(name).definition.flops != "0"  # what only moves states knows no layout
    }
)


@pytest.mark.parametrize("name", WITH_STATES)
def test_the_state_layout_of_a_symmetry_matters(name: str) -> None:
    """Taking keys for values in the state, as a confusion of k_first and k_last does, is noticed."""
    whole = declared(name, "flip_key_channels")
    model = definition(name).definition
    tensors = (*model.inputs, *model.outputs)
    states = {tensor.name: len(tensor.shape or []) for tensor in tensors if roles.is_state(model, tensor)}
    swapped = {k: 2 * states[k] - 3 - dim if k in states else dim for k, dim in whole.dimension.items()}
    assert differing(name, GVA, whole.model_copy(update={"dimension": swapped}))


def test_a_permutation_across_groups_is_no_symmetry() -> None:
    within = declared("gdn_prefill_k_last", "permute_value_heads_in_group")
    found = definition("gdn_prefill_k_last")
    keywords, outputs = call("gdn_prefill_k_last", GVA)
    # Heads 0 and 2 of four change places: they have different keys.
    order = torch.tensor([2, 1, 0, 3])
    across = Transformation(within, indices={tensor: (at, order) for tensor, at in within.dimension.items()})
    got = run_reference(found, keywords | across.apply({k: keywords[k] for k in within.dimension if k in keywords}))
    assert not torch.equal(got["output"], across.apply(outputs)["output"])


# --- all at once, as the judge's second call has them -----------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
@pytest.mark.parametrize("name", sorted(definitions()))
def test_all_symmetries_of_a_call_are_undone(name: str, seed: int) -> None:
    found = definition(name)
    calls = further(found.definition, drawn(found, GVA).scope, torch.Generator().manual_seed(seed))
    least = {"convolution": 2, "norm": 4, "layer": 4}.get(found.definition.stage, 5)
    assert len(calls[-1]) >= (3 if name == "gdn_conv1d_backward" else least)
    for changes in calls:
        exact = all(one.symmetry.exact for one in changes)
        keywords, outputs = call(name, GVA, precision(exact))
        tensors = {k: v for k, v in keywords.items() if isinstance(v, Tensor)}
        changed = apply_all(changes, tensors)
        values = next(name for name in ("v", "mixed_qkv", "qkv", "x", "u", "u_new", "step_states") if name in tensors)
        assert not torch.equal(changed[values], tensors[values])
        back = undo_all(changes, changed)
        assert all(torch.equal(back[k], tensors[k]) for k in tensors)
        got = undo_all(changes, run_reference(found, keywords | changed))
        assert all(same(got[k], outputs[k], exact) for k in outputs)


def test_a_third_call_is_made_where_a_symmetry_reorders_sums_and_nowhere_else() -> None:
    for found in definitions().values():
        calls = further(found.definition, drawn(found, GVA).scope, torch.Generator().manual_seed(0))
        assert [one for one in calls[-1] if one.symmetry.exact] == calls[0]
        assert len(calls) == (1 if all(one.symmetry.exact for one in calls[-1]) else 2)


def test_no_bits_are_compared_after_scaling_where_gates_leave_what_vanishes() -> None:
    """What is left of a state, or is lost when it was scaled down before, decides a tie in the last bit of a sum."""
    found = definition("gdn_prefill_k_last")
    scope, name = drawn(found, GVA).scope, "scale_value_channels"
    for regime, calls_with in (("typical", [0]), ("forget_regions", [1])):
        calls = further(
            found.definition, scope, torch.Generator().manual_seed(0), regime in found.family.about.vanishing
        )
        assert [i for i, call in enumerate(calls) if any(one.symmetry.name == name for one in call)] == calls_with


@pytest.mark.parametrize(
    ("seed", "share"), [(0, 3), *(pytest.param(seed, 1, marks=pytest.mark.thorough) for seed in (0, 1, 2))]
)
@pytest.mark.parametrize("name", one_in(2, sorted(definitions())))
def test_nothing_that_a_call_leaves_is_as_the_first_one_left_it(name: str, seed: int, share: int) -> None:
    """On every smoke workload each output, and each tensor that is updated, differs between the first call and a later
    one: or a solution may keep it. What is the same everywhere, or has no element, nobody needs to keep."""
    found = definition(name)
    for line in [line for line in workloads(found) if line.suite == "smoke"][::share]:
        inputs = materialise(found, line)
        keywords = arguments(found, inputs)
        tensors = {k: v for k, v in keywords.items() if isinstance(v, Tensor)}
        first, altered = left_behind(found, keywords, tensors), set()
        for changes in further(found.definition, inputs.scope, torch.Generator().manual_seed(seed)):
            changed = apply_all(changes, tensors)
            later = left_behind(found, keywords, changed)
            altered |= {k for k in first if not bool(same_values(later[k], first[k]).all())}
        wide = {k: x.float() if x.element_size() == 1 else x for k, x in first.items()}
        plain = {k for k, x in wide.items() if len(x.unique()) <= 1}
        assert altered | plain == set(first), line.name
        assert not plain or line.name in {"scale_zero", "no_checkpoint"}, line.name


def left_behind(found: Found, keywords: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the reference leaves on these tensors: outputs, and what it writes of those that it updates."""
    outputs = run_reference(found, keywords | tensors)
    return outputs | left(found.definition, outputs, integers(tensors))


@pytest.mark.parametrize("seed", range(20))
def test_two_heads_change_places_in_every_second_call(seed: int) -> None:
    found = definition("gdn_conv_gates_prefill")
    scope, generator = drawn(found, GVA).scope, torch.Generator().manual_seed(seed)
    (changes,) = (x for x in further(found.definition, scope, generator) if all(one.symmetry.exact for one in x))
    heads = next(one for one in changes if one.symmetry.name == "permute_query_heads")
    assert heads.indices["q"][1].tolist() == [1, 0]


# --- parts of an axis -------------------------------------------------------------------------------------------


def test_a_part_is_transformed_wherever_its_axis_stands() -> None:
    """Of conv_dim = 2 (2 * 3) + 4 * 3 channels, in front, behind and in the middle."""
    own = definition("gdn_conv_gates_prefill").definition
    scope = own.bind(
        {"num_k_heads": 2, "num_v_heads": 4, "head_size": 3, "kernel_width": 3, "total_seq_len": 5, "num_seqs": 1,
         "num_slots": 2}
    )  # fmt: skip
    tensors = {
        "x": torch.arange(24.0).expand(5, -1), "conv_weight": torch.arange(24.0)[:, None].expand(-1, 3),
        "conv_bias": torch.arange(24.0), "conv_states": torch.arange(24.0)[:, None].expand(2, -1, 2),
        "k": torch.arange(6.0, 12.0).view(2, 3).expand(5, -1, -1),
    }  # fmt: skip
    one = chosen(own, declared(own.name, "permute_key_heads"), scope)
    moved = one.apply(tensors)
    wanted = torch.tensor([*range(6), *range(9, 12), *range(6, 9), *range(12, 24)], dtype=torch.float32)
    for name, at in {"x": 1, "conv_weight": 0, "conv_bias": 0, "conv_states": 1}.items():
        assert torch.equal(moved[name].movedim(at, -1), wanted.expand_as(moved[name].movedim(at, -1))), name
    assert torch.equal(moved["k"].flatten(1), wanted[6:12].expand(5, -1))
    assert all(torch.equal(x, tensors[name]) for name, x in one.undo(moved).items())


def test_what_vanishes_is_zero_and_nan_agrees_with_nothing() -> None:
    a = torch.tensor([0.0, 1e-35, 1e-30, 1.0, torch.nan, torch.inf])
    b = torch.tensor([-0.0, 2e-35, 2e-30, 1.0, torch.nan, torch.inf])
    assert same_values(a, b).tolist() == [True, True, False, True, False, True]
