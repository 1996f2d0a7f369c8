"""How far an output is from what is expected: metrics by hand, nothing hidden, and the place of the worst."""

import math
from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.model.budget import MARGIN, METRICS, SPACING, floors, freeze, metrics_of
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.allowed import budget
from gdnspec.numerics.expected import oracle
from gdnspec.numerics.judge import Verdict, judge
from gdnspec.numerics.metrics import Vectors, as_vectors, errors
from helpers_unit import arguments, line
from torch import Tensor

F64 = torch.float64
LIMITS = {"relative_l2": 0.01, "worst_vector": 0.03}


def vectors(rows: list[list[float]], sequence: list[int] | None = None) -> Vectors:
    """One head; every row a sequence of its own unless told."""
    owner = sequence or list(range(len(rows)))
    return Vectors(torch.tensor(rows, dtype=F64)[:, None], torch.tensor(owner), max(owner) + 1)


def maxima(got: list[list[float]], expected: list[list[float]], sequence: list[int] | None = None) -> dict[str, float]:
    return errors(vectors(got, sequence), vectors(expected, sequence)).maxima


# --- metrics ----------------------------------------------------------------------------------------------------


def test_metrics_of_one_vector_worked_by_hand() -> None:
    # |error| = 1, |expected| = 5, an element's root mean square is 5 / sqrt(2).
    found = maxima([[3.0, 5.0]], [[3.0, 4.0]])
    assert found == pytest.approx({"relative_l2": 0.2, "worst_vector": 0.2, "max_over_rms": math.sqrt(2) / 5})


def test_metrics_of_a_sequence_of_two_vectors_worked_by_hand() -> None:
    # Errors 0.3 and 0.8 of vectors of length 3 and 4: together sqrt(0.73) of 5; the rms of an element is 2.5.
    found = maxima([[3.3, 0.0], [0.0, 3.2]], [[3.0, 0.0], [0.0, 4.0]], [0, 0])
    assert found == pytest.approx({"relative_l2": math.sqrt(0.73) / 5, "worst_vector": 0.2, "max_over_rms": 0.8 / 2.5})


def test_equal_values_have_no_error() -> None:
    assert set(maxima([[1.0, -0.0]], [[1.0, 0.0]]).values()) == {0.0}


def test_the_denominator_of_a_small_vector_is_a_quarter_of_the_average() -> None:
    # Lengths 4 and 0.04: a vector's rms is sqrt(16.0016 / 2), a quarter of it the floor.
    found = maxima([[4.0], [0.14]], [[4.0], [0.04]], [0, 0])
    assert found["worst_vector"] == pytest.approx(0.1 / (0.25 * math.sqrt(16.0016 / 2)))
    # Alone, it is judged by its own length.
    assert maxima([[0.14]], [[0.04]])["worst_vector"] == pytest.approx(2.5)


def test_a_large_sequence_hides_no_error_in_a_small_one() -> None:
    expected = [[1e4, 1e4]] * 50 + [[1e-2, 1e-2]]
    got = [[1e4, 1e4]] * 50 + [[2e-2, 1e-2]]
    found = maxima(got, expected, [0] * 50 + [1])
    assert found["relative_l2"] == pytest.approx(1 / math.sqrt(2))
    assert found["worst_vector"] == pytest.approx(1 / math.sqrt(2))


def test_a_large_head_hides_no_error_in_a_small_one() -> None:
    expected = torch.tensor([[[1e4, 1e4], [1e-2, 1e-2]]], dtype=F64)
    got = expected.clone()
    got[0, 1, 0] = 2e-2
    found = errors(Vectors(got, torch.tensor([0]), 1), Vectors(expected, torch.tensor([0]), 1))
    assert found.maxima["relative_l2"] == pytest.approx(1 / math.sqrt(2))
    assert found.worst["relative_l2"] == (0, 1)


def test_one_wrong_row_among_4096_shows_in_the_worst_vector() -> None:
    expected = torch.randn(4096, 1, 64, dtype=F64, generator=torch.Generator().manual_seed(1))
    got = expected.clone()
    got[2500, 0] *= 1.1
    owner = torch.zeros(4096, dtype=torch.int64)
    found = errors(Vectors(got, owner, 1), Vectors(expected, owner, 1))
    assert found.maxima["relative_l2"] < LIMITS["relative_l2"]
    assert found.maxima["worst_vector"] == pytest.approx(0.1)
    assert found.worst["worst_vector"] == (2500, 0)


@pytest.mark.parametrize("got", [1e-30, -1e-30, 5.0])
def test_where_zero_is_expected_only_zero_will_do(got: float) -> None:
    found = maxima([[0.0, got]], [[0.0, 0.0]])
    assert set(found.values()) == {math.inf}
    # Beside vectors that are not zero, too: scale 0, a skipped row.
    assert maxima([[1.0, 1.0], [0.0, got]], [[1.0, 1.0], [0.0, 0.0]], [0, 0])["worst_vector"] == math.inf


def test_zero_where_zero_is_expected_is_no_error() -> None:
    assert set(maxima([[0.0, -0.0]], [[0.0, 0.0]]).values()) == {0.0}


@pytest.mark.parametrize("tiny", [1e-38, -1e-38, 2.0**-149, 1e-300])
def test_below_the_smallest_normal_number_counts_as_zero_on_both_sides(tiny: float) -> None:
    assert set(maxima([[tiny]], [[0.0]]).values()) == {0.0}
    assert set(maxima([[0.0]], [[tiny]]).values()) == {0.0}
    assert maxima([[2.0**-126]], [[0.0]])["worst_vector"] == math.inf
    # A value just below that comes out a little above is right, and no infinite error: rounded, or inexact.
    for below in (1 - 2.0**-9, 0.9, -0.1):
        assert maxima([[2.0**-126 * 1.2]], [[2.0**-126 * below]])["worst_vector"] == 0.0
    assert maxima([[2.0**-125]], [[2.0**-127]])["worst_vector"] == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_wrong(bad: float) -> None:
    for expected in (1.0, 0.0):
        assert set(maxima([[bad, 1.0]], [[expected, 1.0]]).values()) == {math.inf}


def test_large_values_do_not_overflow() -> None:
    assert maxima([[3.3e38, 0.0]], [[3e38, 0.0]])["relative_l2"] == pytest.approx(0.1)


@pytest.mark.parametrize("shape", [(0, 4, 64), (3, 0, 64), (3, 4, 0)])
def test_an_empty_output_has_no_error(shape: tuple[int, ...]) -> None:
    empty = Vectors(torch.zeros(shape, dtype=F64), torch.zeros(shape[0], dtype=torch.int64), 3)
    found = errors(empty, empty)
    assert set(found.maxima.values()) == {0.0}
    assert found.worst == {}


# --- the place --------------------------------------------------------------------------------------------------

PREFILL, DECODE = definition("gdn_prefill_k_last"), definition("gdn_decode_k_last")
CU_SEQLENS = [0, 5, 5, 12]


def output_of(found: Found, name: str) -> TensorModel:
    return next(tensor for tensor in found.definition.outputs if tensor.name == name)


def expected_of(found: Found, name: str) -> tuple[Tensor, dict[str, Any]]:
    """Random expected values of three sequences of 5, 0 and 7 tokens, or of three rows; 4 heads of 8 elements."""
    scope: dict[str, Any] = {"total_seq_len": 12, "num_seqs": 3, "batch_size": 3, "cu_seqlens": CU_SEQLENS}
    scope |= {"num_sab_heads": 4, "num_o_heads": 4, "head_size": 8}
    shape = found.definition.shape(output_of(found, name), scope)
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(1)) + 3, scope


def verdict_on(found: Found, name: str, index: tuple[int, ...], value: float, limits: dict[str, float]) -> Verdict:
    """The verdict on an output that is right but for one element."""
    expected, scope = expected_of(found, name)
    got = expected.clone().float()
    got[index] = value
    return judge(got, expected, output_of(found, name), found.definition, scope, limits)


PLACES = [
    # definition, output, element changed: sequence, head, vector, element
    ("gdn_prefill_k_last", "output", (3, 2, 6), (0, 2, 3, 6), "sequence 0, head 2, token 3, element 6"),
    ("gdn_prefill_k_last", "output", (5, 1, 0), (2, 1, 0, 0), "sequence 2, head 1, token 0, element 0"),
    ("gdn_prefill_k_last", "output", (11, 3, 7), (2, 3, 6, 7), "sequence 2, head 3, token 6, element 7"),
    ("gdn_prefill_k_last", "final_state", (1, 2, 5, 3), (1, 2, 5, 3), "sequence 1, head 2, row 5, element 3"),
    ("gdn_prefill_k_first", "final_state", (2, 0, 4, 1), (2, 0, 4, 1), "sequence 2, head 0, row 4, element 1"),
    ("gdn_decode_k_last", "output", (2, 0, 3, 4), (2, 3, 0, 4), "sequence 2, head 3, token 0, element 4"),
    ("gdn_decode_k_last", "new_state", (1, 3, 7, 0), (1, 3, 7, 0), "sequence 1, head 3, row 7, element 0"),
    ("gdn_decode_k_first", "new_state", (0, 1, 2, 6), (0, 1, 2, 6), "sequence 0, head 1, row 2, element 6"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "output", "index", "place", "said"), PLACES)
@pytest.mark.parametrize("metric", ["relative_l2", "worst_vector", "max_over_rms"])
def test_the_worst_place_is_named(
    name: str, output: str, index: tuple[int, ...], place: tuple[int, ...], said: str, metric: str
) -> None:
    expected, _ = expected_of(definition(name), output)
    verdict = verdict_on(definition(name), output, index, 9.5, {metric: 0.01})
    assert verdict.status == "INCORRECT_NUMERICAL"
    assert verdict.errors is not None
    worst = verdict.errors.worst
    assert worst is not None
    assert (worst.sequence, worst.head, worst.vector, worst.element) == place
    assert worst.got == 9.5
    assert worst.expected == pytest.approx(float(expected[index]))
    assert verdict.message.startswith(f"{output}: {metric} ")
    assert f"{said}: got 9.5, expected {float(expected[index]):.6g}" in verdict.message
    assert "> 0.01" in verdict.message


@pytest.mark.parametrize(("name", "output", "index", "place", "said"), PLACES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named_with_its_place(
    name: str, output: str, index: tuple[int, ...], place: tuple[int, ...], said: str, bad: float
) -> None:
    verdict = verdict_on(definition(name), output, index, bad, LIMITS)
    assert verdict.status == "NON_FINITE"
    assert verdict.errors is not None
    worst = verdict.errors.worst
    assert worst is not None
    assert (worst.sequence, worst.head, worst.vector, worst.element) == place
    assert worst.got is None
    assert set(verdict.errors.errors.values()) == {None}
    assert f"{said}: got a value that is not finite" in verdict.message


def test_an_output_that_nobody_wrote_is_said_to_be_so() -> None:
    expected, scope = expected_of(PREFILL, "output")
    got = torch.full_like(expected, math.nan).to(torch.bfloat16)
    verdict = judge(got, expected, output_of(PREFILL, "output"), PREFILL.definition, scope, LIMITS)
    assert verdict.status == "NON_FINITE"
    assert "never written" in verdict.message


def test_what_is_not_finite_is_no_pass_however_wide_the_limits() -> None:
    assert verdict_on(PREFILL, "output", (0, 0, 0), math.nan, {"relative_l2": 1e300}).status == "NON_FINITE"


def test_a_right_output_passes_with_its_errors_on_record() -> None:
    expected, scope = expected_of(PREFILL, "output")
    output = output_of(PREFILL, "output")
    verdict = judge(expected.to(torch.bfloat16), expected, output, PREFILL.definition, scope, LIMITS)
    assert (verdict.status, verdict.message) == ("PASSED", "")
    assert verdict.errors is not None
    assert 0 < (verdict.errors.errors["relative_l2"] or 0) < 0.005
    assert verdict.errors.budget == LIMITS


def test_a_limit_is_kept_when_it_is_met_exactly() -> None:
    expected = torch.full((1, 1, 1, 2), 4.0, dtype=F64)
    scope = {"batch_size": 1}
    for limit, status in ((0.25, "PASSED"), (0.2499, "INCORRECT_NUMERICAL")):
        got = torch.full((1, 1, 1, 2), 5.0)
        verdict = judge(got, expected, output_of(DECODE, "output"), DECODE.definition, scope, {"relative_l2": limit})
        assert verdict.status == status


def test_every_exceeded_metric_is_told() -> None:
    expected = torch.full((2, 1, 1, 2), 4.0, dtype=F64)
    got = expected.clone().float()
    got[1] *= 1.5
    verdict = judge(got, expected, output_of(DECODE, "output"), DECODE.definition, {"batch_size": 2}, LIMITS)
    assert "relative_l2 0.5 > 0.01, worst_vector 0.5 > 0.03" in verdict.message


def test_the_place_is_that_of_the_metric_that_exceeds_its_limit_most() -> None:
    scope: dict[str, Any] = {"cu_seqlens": [0, 4096]}
    expected = torch.ones(4096, 2, 4, dtype=F64)
    got = expected.clone().float()
    got[:, 0] *= 1.02  # relative_l2 is twice its limit
    got[777, 1, 2] *= 1.9  # worst_vector is fifteen times its limit
    verdict = judge(got, expected, output_of(PREFILL, "output"), PREFILL.definition, scope, LIMITS)
    assert "sequence 0, head 1, token 777, element 2" in verdict.message


def test_the_place_is_that_of_what_is_not_finite_though_a_wrong_zero_comes_before() -> None:
    scope: dict[str, Any] = {"cu_seqlens": [0, 4]}
    expected = torch.zeros(4, 2, 4, dtype=F64)
    got = expected.clone().float()
    got[0, 0, 0] = 1.0
    got[3, 1, 2] = math.nan
    verdict = judge(got, expected, output_of(PREFILL, "output"), PREFILL.definition, scope, LIMITS)
    assert verdict.status == "NON_FINITE"
    assert "sequence 0, head 1, token 3, element 2" in verdict.message


@pytest.mark.parametrize("name", ["output", "final_state"])
def test_all_sequences_empty_passes_where_the_states_are_right(name: str) -> None:
    scope: dict[str, Any] = {"total_seq_len": 0, "num_seqs": 2, "cu_seqlens": [0, 0, 0], "num_sab_heads": 4}
    scope |= {"num_o_heads": 4, "head_size": 8}
    output = output_of(PREFILL, name)
    expected = torch.ones(PREFILL.definition.shape(output, scope), dtype=F64)
    assert judge(expected.float(), expected, output, PREFILL.definition, scope, LIMITS).status == "PASSED"
    if name == "final_state":
        wrong = torch.zeros_like(expected)
        assert judge(wrong, expected, output, PREFILL.definition, scope, LIMITS).status == "INCORRECT_NUMERICAL"


def test_tokens_belong_to_their_sequence_and_rows_of_a_state_to_theirs() -> None:
    expected, scope = expected_of(PREFILL, "output")
    seen = as_vectors(expected, output_of(PREFILL, "output"), PREFILL.definition, scope)
    assert seen.sequence.tolist() == [0] * 5 + [2] * 7
    assert seen.sequences == 3
    assert torch.equal(seen.values, expected)
    state, scope = expected_of(PREFILL, "final_state")
    seen = as_vectors(state, output_of(PREFILL, "final_state"), PREFILL.definition, scope)
    assert seen.sequence.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert torch.equal(seen.values[8 + 5, 3], state[1, 3, 5])


RAW_GATES = "gdn_prefill_backward_raw_gates"


def test_what_a_parameter_gets_is_judged_head_by_head_whatever_sequences_there_are() -> None:
    found, scope = definition(RAW_GATES), {"cu_seqlens": [0, 5, 12], "num_sab_heads": 4}
    output = output_of(found, "dA_log")
    expected = torch.tensor([3.0, 4.0, 0.0, 0.1], dtype=F64)
    seen = as_vectors(expected, output, found.definition, scope)
    assert (seen.sequence.tolist(), seen.sequences) == ([0] * 4, 1)
    assert seen.values.shape == (4, 1, 1)
    got = (expected + torch.tensor([0, 0, 0, 0.05])).float()
    verdict = judge(got, expected, output, found.definition, scope, LIMITS)
    assert verdict.status == "INCORRECT_NUMERICAL"  # 0.05 of a quarter of the heads' root mean square, 2.5
    assert "worst at index 3, element 0" in verdict.message
    assert verdict.errors is not None
    assert verdict.errors.errors["worst_vector"] == pytest.approx(0.05 / (0.25 * 2.5), rel=1e-2)
    wrong = torch.tensor([3.0, 4.0, 1e-3, 0.1])
    assert judge(wrong, expected, output, found.definition, scope, LIMITS).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize(("name", "floor"), [("dconv_weight", 1.0), ("dnorm_weight", 1.0), ("dout_weight", 0.25)])
def test_a_channel_of_a_layer_that_gets_few_numbers_may_cancel(name: str, floor: float) -> None:
    found = definition("gdn_layer_backward")
    expected = torch.zeros({"dconv_weight": (4, 3), "dnorm_weight": (4,), "dout_weight": (4, 8)}[name], dtype=F64)
    expected[0] = 4.0
    expected[1:] = 0.01
    seen = as_vectors(expected, output_of(found, name), found.definition, {})
    assert (seen.values.shape[0], seen.floor) == (4, floor)
    of_head = output_of(found, "dA_log")
    assert as_vectors(torch.ones(4, dtype=F64), of_head, found.definition, {}).floor == 0.25


# --- budgets ----------------------------------------------------------------------------------------------------


SHIPPED = {w.name: w for w in workloads(DECODE)}


def test_without_a_budget_nothing_is_judged() -> None:
    for output in DECODE.definition.outputs:
        with pytest.raises(SpecError, match="has no error budget for output, new_state"):
            budget(DECODE.definition, output, line(DECODE))


def test_a_budget_for_one_output_is_none_for_the_other() -> None:
    frozen = {"new_state": {"relative_l2": 1e-6, "worst_vector": 2e-6, "max_over_rms": 3e-6}}
    workload = Workload.model_validate(line(DECODE).model_dump(exclude_defaults=True) | {"budget": frozen})
    output, state = DECODE.definition.outputs
    assert budget(DECODE.definition, state, workload) == frozen["new_state"]
    with pytest.raises(SpecError, match="no error budget for output,"):
        budget(DECODE.definition, output, workload)


@pytest.mark.parametrize("name", ["batch_8", "regime_typical", "no_l2norm"])
def test_a_state_that_went_through_bfloat16_exceeds_the_budget_of_a_decode(name: str) -> None:
    inputs = materialise(DECODE, SHIPPED[name])
    _, state = oracle(DECODE, 1)(**arguments(DECODE, inputs, torch.float64))
    output = output_of(DECODE, "new_state")
    limits = budget(DECODE.definition, output, SHIPPED[name])
    assert judge(state.float(), state, output, DECODE.definition, inputs.scope, limits).status == "PASSED"
    rounded = state.to(torch.bfloat16).float()
    assert judge(rounded, state, output, DECODE.definition, inputs.scope, limits).status == "INCORRECT_NUMERICAL"


def rounded_to_nearest(x: Tensor) -> Tensor:
    return x.float().to(torch.bfloat16)


def toward_zero(x: Tensor) -> Tensor:
    return (x.float().view(torch.int32) & -65536).view(torch.float32)


def downwards(x: Tensor) -> Tensor:
    cut = toward_zero(x)
    return torch.where((x < 0) & (cut != x), cut - 2.0 ** (cut.abs().log2().floor() - 7), cut)


@pytest.mark.parametrize("elements", [96, 128, 1000, 16384])
def test_rounding_to_nearest_has_no_bias_and_truncation_has(elements: int) -> None:
    source = torch.Generator().manual_seed(elements)
    for _ in range(50):
        exact = torch.randn(1, 1, elements, generator=source).double()
        want = Vectors(exact, torch.zeros(1, dtype=torch.int64), 1)

        def bias(way: Any, exact: Tensor = exact, want: Vectors = want) -> float:
            got = Vectors(way(exact).double(), want.sequence, 1)
            return errors(got, want, SPACING["bfloat16"]).maxima["bias"]

        floor = floors(output_of(DECODE, "output"))["bias"]
        assert bias(rounded_to_nearest) < floor / MARGIN
        assert bias(toward_zero) > floor
        assert bias(downwards) > floor
        assert bias(lambda x: -toward_zero(-x)) == bias(toward_zero)


@pytest.mark.parametrize("tokens", [1, 2, 3, 64, 1000])
def test_a_rounding_that_a_whole_vector_shares_is_no_bias(tokens: int) -> None:
    """As that of q k^T, which a token's output is multiplied by: by chance all errors of a short sequence agree."""
    source = torch.Generator().manual_seed(tokens)
    exact = torch.randn(tokens, 32, 128, generator=source).double()
    owner = torch.zeros(tokens, dtype=torch.int64)
    score = torch.randn(tokens, 32, 1, generator=source).double()
    got = rounded_to_nearest(exact * (rounded_to_nearest(score).double() / score)).double()
    floor = floors(output_of(PREFILL, "output"))["bias"]

    def bias(got: Tensor, shared: bool) -> float:
        return errors(Vectors(got, owner, 1), Vectors(exact, owner, 1), SPACING["bfloat16"], shared).maxima["bias"]

    assert bias(got, True) < floor / MARGIN
    assert bias(got, False) > floor or tokens > 3, "what an honest kernel was rejected for"
    assert (bias(toward_zero(exact).double(), True) > floor) == (tokens >= 64)


def test_a_bias_in_one_head_of_one_sequence_is_seen() -> None:
    source = torch.Generator().manual_seed(2)
    exact = torch.randn(6, 3, 256, generator=source).double()
    got = rounded_to_nearest(exact).double()
    got[4:, 1] = toward_zero(exact[4:, 1]).double()
    owner = torch.tensor([0, 0, 0, 0, 1, 1])
    found = errors(Vectors(got, owner, 2), Vectors(exact, owner, 2), SPACING["bfloat16"])
    assert found.maxima["bias"] > 2e-3
    row, head = found.worst["bias"]
    assert (int(owner[row]), head) == (1, 1)


def test_a_bias_is_measured_of_16_bit_outputs_alone() -> None:
    bf16, state = output_of(DECODE, "output"), output_of(DECODE, "new_state")
    assert "bias" in metrics_of(bf16)
    assert "bias" not in metrics_of(state)
    figures = {m: [1e-5] for m in metrics_of(bf16)}
    assert freeze(bf16, figures)["bias"] == pytest.approx(2**-10, rel=1e-3)
    del figures["bias"]
    assert "bias" not in freeze(bf16, figures), "lines from before there was one"


def test_a_budget_is_twice_the_largest_emulator_and_never_below_the_floor() -> None:
    state, output = output_of(DECODE, "new_state"), output_of(DECODE, "output")
    figures = {m: [0.002, 0.003] for m in METRICS}
    assert freeze(state, figures) == dict.fromkeys(METRICS, 0.006)
    exact = {m: [1e-8, 0.0] for m in METRICS}
    assert freeze(state, exact) == {"relative_l2": 5e-4, "worst_vector": 1e-3, "max_over_rms": 5e-3}
    assert freeze(output, exact)["relative_l2"] == pytest.approx(2**-8, rel=1e-3)
