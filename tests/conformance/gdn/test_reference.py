"""The reference: one token worked out by hand, and what must hold between its forms, layouts, gates and types."""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from helpers_unit import arguments, drawn, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

gdn, chunkwise = reference("gated_delta_net"), reference("chunkwise")
F64 = torch.float64
Keywords = dict[str, Any]
Prefill = Callable[..., tuple[Tensor, Tensor]]
PREFILLS = [gdn.prefill_k_last, gdn.prefill_k_first, chunkwise.prefill_k_last, chunkwise.prefill_k_first]
DECODES = [gdn.decode_k_last, gdn.decode_k_first]


def k_first(function: Prefill) -> bool:
    return function.__name__.endswith("k_first")


def named(functions: list[Prefill]) -> Any:
    return pytest.mark.parametrize("function", functions, ids=lambda f: f"{f.__module__}.{f.__name__}")


# --- by hand ----------------------------------------------------------------------------------------------------

# S [V, K], k, v, q, alpha = beta = 1/2, scale = 2.
STATE = torch.tensor([[2.0, 4.0], [6.0, 8.0]], dtype=F64)
KEY, VALUE, QUERY = (torch.tensor(x, dtype=F64) for x in ([0.5, 1.0], [3.0, -1.0], [1.0, 2.0]))
# decay: S = [[1, 2], [3, 4]]. error: S k = [2.5, 5.5], v - S k = [0.5, -6.5], u = [0.25, -3.25].
# write: u k^T = [[0.125, 0.25], [-1.625, -3.25]].
NEW_STATE = torch.tensor([[1.125, 2.25], [1.375, 0.75]], dtype=F64)
# read: S q = [1.125 + 4.5, 1.375 + 1.5], times 2.
OUTPUT = torch.tensor([11.25, 5.75], dtype=F64)


def test_a_step_decays_then_takes_the_error_then_writes_then_reads() -> None:
    half = torch.tensor(0.5, dtype=F64)
    output, state = gdn.step(STATE, QUERY, KEY, VALUE, half, half, 2.0)
    assert torch.equal(state, NEW_STATE)
    assert torch.equal(output, OUTPUT)


@named(PREFILLS)
def test_prefill_of_one_token_is_the_example_worked_by_hand(function: Prefill) -> None:
    first = k_first(function)
    gate = torch.full((1, 1), math.log(0.5) if first else 0.5, dtype=F64)
    q, k, v = (x[None, None] for x in (QUERY, KEY, VALUE))
    state = (STATE.T if first else STATE)[None, None]
    output, final = function(q, k, v, gate, torch.full((1, 1), 0.5, dtype=F64), torch.tensor([0, 1]), state, 2.0)
    torch.testing.assert_close(final[0, 0], NEW_STATE.T if first else NEW_STATE, rtol=1e-15, atol=0)
    torch.testing.assert_close(output[0, 0], OUTPUT, rtol=1e-15, atol=0)


@named(DECODES)
def test_decode_is_the_example_worked_by_hand(function: Prefill) -> None:
    # A = 1, softplus(0) = log 2: alpha = 1/2; sigmoid(0) = 1/2.
    first, zero = k_first(function), torch.zeros(1, dtype=F64)
    q, k, v = (x[None, None, None] for x in (QUERY, KEY, VALUE))
    state = (STATE.T if first else STATE)[None, None]
    raw = zero[None, None]
    output, new = function(q, k, v, state, zero, raw, zero, raw, 2.0, False)
    torch.testing.assert_close(new[0, 0], NEW_STATE.T if first else NEW_STATE, rtol=1e-15, atol=0)
    torch.testing.assert_close(output[0, 0, 0], OUTPUT, rtol=1e-15, atol=0)


# --- random inputs ----------------------------------------------------------------------------------------------

HEADS = [(1, 1, 1), (2, 2, 2), (1, 1, 2), (2, 2, 6), (4, 2, 2), (3, 1, 1)]  # q, k, v: MHA, GVA, GQA


def prefill_inputs(
    seed: int = 0,
    lengths: tuple[int, ...] = (5, 0, 3),
    heads: tuple[int, int, int] = (2, 2, 4),
    size: int = 4,
    dtype: torch.dtype = F64,
) -> Keywords:
    """Keys of unit norm, alpha in [0, 1] with exact zeros and ones, beta in [0, 2] with both ends."""
    generator = torch.Generator().manual_seed(seed)
    T, H = sum(lengths), max(heads)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=F64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    q, k, v = (normal(T, n, size) for n in heads)
    alpha = (1.3 * uniform(T, H) - 0.15).clamp(0, 1)
    beta = (2.4 * uniform(T, H) - 0.2).clamp(0, 2)
    floats = {
        "q": q, "k": k / k.norm(dim=-1, keepdim=True).clamp(min=1e-9), "v": v, "g": alpha, "beta": beta,
        "initial_state": normal(len(lengths), H, size, size),
    }  # fmt: skip
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    return {name: x.to(dtype) for name, x in floats.items()} | {"cu_seqlens": cu_seqlens, "scale": None}


def as_k_first(inputs: Keywords) -> Keywords:
    """The same call in the terms of k_first: log gates, transposed states."""
    g, state = inputs["g"], inputs["initial_state"]
    return inputs | {"g": None if g is None else g.log(), "initial_state": None if state is None else state.mT.clone()}


def inputs_of(function: Prefill, **options: Any) -> Keywords:
    """Random inputs as this function takes them."""
    inputs = prefill_inputs(**options)
    return as_k_first(inputs) if k_first(function) else inputs


def relative_error(got: Tensor, expected: Tensor) -> float:
    """|got - expected| / |expected|, 0 where both are zero or empty."""
    return float((got - expected).norm() / expected.norm().clamp(min=1e-300))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65]) | st.integers(0, 150), min_size=1, max_size=3),
    heads=st.sampled_from(HEADS),
    size=st.sampled_from([3, 8]),
    chunk_size=st.sampled_from([1, 16, 64]),
    layout=st.sampled_from(["prefill_k_last", "prefill_k_first"]),
    omit=st.sets(st.sampled_from(["g", "beta", "initial_state"])),
)  # fmt: skip
def test_chunkwise_equals_the_recurrence(
    seed: int,
    lengths: list[int],
    heads: tuple[int, int, int],
    size: int,
    chunk_size: int,
    layout: str,
    omit: set[str],
) -> None:
    inputs = prefill_inputs(seed, tuple(lengths), heads, size) | dict.fromkeys(omit)
    if layout == "prefill_k_first":
        inputs = as_k_first(inputs)
    expected = getattr(gdn, layout)(**inputs)
    got = getattr(chunkwise, layout)(**inputs, chunk_size=chunk_size)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == F64
        assert one.shape == other.shape
        assert torch.isfinite(one).all()
        assert relative_error(one, other) <= 1e-12
    for n in range(len(lengths)):  # no long sequence hides an error in a short one
        assert relative_error(got[1][n], expected[1][n]) <= 1e-12


@pytest.mark.parametrize("name", ["same_key_128", "strict_512", "resets_long", "decayed_state_short", "gqa_128"])
@pytest.mark.parametrize("chunk_size", [16, 64])
def test_chunkwise_equals_the_recurrence_on_the_hardest_shipped_inputs(name: str, chunk_size: int) -> None:
    found = definition("gdn_prefill_k_first")
    workload = next(w for w in workloads(found) if w.name == name)
    inputs = arguments(found, materialise(found, workload), F64)
    expected = gdn.prefill_k_first(**inputs)
    got = chunkwise.prefill_k_first(**inputs, chunk_size=chunk_size)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) <= 1e-12


# --- checkpoints ------------------------------------------------------------------------------------------------


def with_checkpoints(inputs: Keywords, interval: int) -> Keywords:
    counts = inputs["cu_seqlens"].diff() // interval
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return inputs | {"checkpoint_cu_starts": starts, "checkpoint_interval": interval}


EDGES = (0, 1, 63, 64, 65, 0, 127, 128, 129, 191, 192, 193, 400, 0)


@pytest.mark.parametrize("module", [gdn, chunkwise], ids=lambda m: m.__name__)
@pytest.mark.parametrize("interval", [64, 128, 192, 448])
def test_a_checkpoint_is_the_final_state_of_a_prefill_that_ends_there(module: Any, interval: int) -> None:
    inputs = prefill_inputs(5, EDGES, (1, 1, 2), 4)
    output, final, kept = module.prefill_checkpoints(**with_checkpoints(inputs, interval))
    whole = gdn.prefill_k_last(**inputs)
    assert relative_error(output, whole[0]) <= 1e-12
    assert relative_error(final, whole[1]) <= 1e-12
    row = 0
    for n, (start, length) in enumerate(zip(inputs["cu_seqlens"].tolist(), EDGES, strict=False)):
        for tokens in range(interval, length + 1, interval):
            piece = slice(start, start + tokens)
            rows = {name: inputs[name][piece] for name in ("q", "k", "v", "g", "beta")}
            alone = {"cu_seqlens": torch.tensor([0, tokens]), "initial_state": inputs["initial_state"][n : n + 1]}
            _, state = gdn.prefill_k_last(**inputs | rows | alone)
            assert relative_error(kept[row], state[0]) <= 1e-12, (n, tokens)
            row += 1
    assert len(kept) == row == {64: 21, 128: 8, 192: 4, 448: 0}[interval]


def test_a_prefill_from_a_checkpoint_gives_the_rest_of_the_output() -> None:
    inputs = prefill_inputs(6, (200,), (2, 2, 4), 4)
    output, final, kept = gdn.prefill_checkpoints(**with_checkpoints(inputs, 64))
    rest = {name: inputs[name][128:] for name in ("q", "k", "v", "g", "beta")}
    resumed = {"cu_seqlens": torch.tensor([0, 72]), "initial_state": kept[1:2]}
    got, state = gdn.prefill_k_last(**inputs | rest | resumed)
    torch.testing.assert_close(got, output[128:], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, final, rtol=1e-12, atol=1e-13)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.sampled_from([0, 1, 63, 64, 65, 128, 192]) | st.integers(0, 300), min_size=1, max_size=3),
    heads=st.sampled_from(HEADS),
    interval=st.sampled_from([64, 128, 192]),
    chunk_size=st.sampled_from([1, 16, 64, 100, 128]),
    omit=st.sets(st.sampled_from(["g", "beta", "initial_state"])),
)  # fmt: skip
def test_chunkwise_checkpoints_equal_those_of_the_recurrence(
    seed: int, lengths: list[int], heads: tuple[int, int, int], interval: int, chunk_size: int, omit: set[str]
) -> None:
    inputs = with_checkpoints(prefill_inputs(seed, tuple(lengths), heads, 3) | dict.fromkeys(omit), interval)
    got = chunkwise.prefill_checkpoints(**inputs, chunk_size=chunk_size)
    expected = gdn.prefill_checkpoints(**inputs)
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (F64, other.shape)
        assert relative_error(one, other) <= 1e-12
    for one, other in zip(got[2], expected[2], strict=True):
        assert relative_error(one, other) <= 1e-12


def test_a_reset_at_its_last_token_leaves_a_checkpoint_that_token_alone() -> None:
    inputs = prefill_inputs(7, (130,), (1, 1, 2), 4)
    inputs["g"][63] = 0.0
    for module in (gdn, chunkwise):
        kept = module.prefill_checkpoints(**with_checkpoints(inputs, 64))[2]
        written = inputs["beta"][63][:, None, None] * inputs["v"][63][:, :, None] * inputs["k"][63][:, None, :]
        torch.testing.assert_close(kept[0], written, rtol=1e-14, atol=1e-14)


# --- straight from the convolution ------------------------------------------------------------------------------


def from_conv_inputs(seed: int, lengths: tuple[int, ...], heads: tuple[int, int], K: int, V: int) -> Keywords:
    """Rows of q, k, v; slots in another order than sequences, the second skipped where there are two."""
    generator = torch.Generator().manual_seed(seed)
    (HK, H), T, N = heads, sum(lengths), len(lengths)
    slots = torch.arange(N, 0, -1, dtype=torch.int32)
    slots[1:2] = -1
    gates = torch.rand(2, T, H, generator=generator, dtype=F64)
    return {
        "qkv": torch.randn(T, 2 * HK * K + H * V, generator=generator, dtype=F64),
        "decay": (1.3 * gates[0] - 0.15).clamp(0, 1), "beta": (2.4 * gates[1] - 0.2).clamp(0, 2),
        "recurrent_state": torch.randn(N + 2, H, K, V, generator=generator, dtype=F64), "slots": slots,
        "row_offsets": torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32),
    }  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.sampled_from([0, 1, 16, 63, 65]) | st.integers(0, 100), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (1, 2), (2, 6)]),
    sizes=st.sampled_from([(4, 4), (3, 8), (8, 5)]),
    chunk_size=st.sampled_from([1, 16, 64]),
)  # fmt: skip
def test_chunkwise_from_the_convolution_equals_the_recurrence(
    seed: int, lengths: list[int], heads: tuple[int, int], sizes: tuple[int, int], chunk_size: int
) -> None:
    inputs = from_conv_inputs(seed, tuple(lengths), heads, *sizes)
    expected = gdn.prefill_from_conv(**inputs)
    got = chunkwise.prefill_from_conv(**inputs, chunk_size=chunk_size)
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (F64, other.shape)
        assert relative_error(one, other) <= 1e-12


def test_from_the_convolution_is_a_prefill_of_normalised_q_and_k_on_slots() -> None:
    inputs = from_conv_inputs(1, (7, 4, 0, 9), (2, 4), 6, 6)
    output, after = gdn.prefill_from_conv(**inputs)
    q, k, v = (x.unflatten(1, (-1, 6)) for x in inputs["qkv"].split([12, 12, 24], dim=1))
    slots = inputs["slots"].long()
    states = inputs["recurrent_state"]
    want, final = gdn.prefill_k_first(
        gdn.l2_normalise(q), gdn.l2_normalise(k), v, inputs["decay"].log(), inputs["beta"], inputs["row_offsets"],
        states[slots], None,
    )  # fmt: skip
    want[7:11] = 0.0  # skipped
    torch.testing.assert_close(output, want.flatten(1), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(after[slots[[0, 3]]], final[[0, 3]], rtol=1e-13, atol=1e-14)
    others = [slot for slot in range(len(states)) if slot not in (int(slots[0]), int(slots[3]))]
    assert torch.equal(after[others], states[others]), "the empty one's among them"


@pytest.mark.parametrize("module", [gdn, chunkwise], ids=lambda m: m.__name__)
@pytest.mark.parametrize("states", [torch.float32, torch.bfloat16], ids=str)
def test_the_type_of_rows_from_the_convolution_says_nothing_but_what_they_hold(module: Any, states: Any) -> None:
    inputs = {name: x.float() if x.is_floating_point() else x for name, x in
              from_conv_inputs(2, (7, 4, 70), (2, 4), 6, 8).items()}  # fmt: skip
    inputs["recurrent_state"] = inputs["recurrent_state"].to(states)
    rows = inputs.pop("qkv")
    output, after = module.prefill_from_conv(rows.bfloat16(), **inputs)
    assert (output.dtype, after.dtype) == (torch.float32, states)
    for one, other in zip(module.prefill_from_conv(rows.bfloat16().float(), **inputs), (output, after), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(module.prefill_from_conv(rows, **inputs)[0], output)


# --- cross-checks that hold by definition -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["k_last", "k_first"])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_chained_decode_steps_equal_one_prefill(layout: str, scale: float | None) -> None:
    T, heads, size = 20, (2, 2, 4), 4
    inputs = prefill_inputs(3, (T,), heads, size)
    generator = torch.Generator().manual_seed(4)
    A_log, dt_bias = (torch.randn(4, generator=generator, dtype=F64) for _ in range(2))
    a, b = (torch.randn(T, 1, 4, generator=generator, dtype=F64) for _ in range(2))
    state = inputs["initial_state"]
    rows = []
    for t in range(T):
        q, k, v = (inputs[name][t][None, None] for name in "qkv")
        decode = getattr(gdn, f"decode_{layout}")
        row, state = decode(q, k, v, state, A_log, a[t : t + 1], dt_bias, b[t : t + 1], scale, False)
        rows.append(row[:, 0])

    log_alpha = -A_log.exp() * torch.nn.functional.softplus(a[:, 0] + dt_bias)
    gates = {"g": log_alpha if layout == "k_first" else log_alpha.exp(), "beta": b[:, 0].sigmoid(), "scale": scale}
    output, final = getattr(gdn, f"prefill_{layout}")(**inputs | gates)
    torch.testing.assert_close(torch.cat(rows), output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, final, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("module", [gdn, chunkwise], ids=lambda m: m.__name__)
def test_prefill_k_first_is_k_last_with_log_gates_and_transposed_states(module: Any) -> None:
    inputs = as_k_first(prefill_inputs())
    output, state = module.prefill_k_first(**inputs)
    last = inputs | {"g": inputs["g"].exp(), "initial_state": inputs["initial_state"].mT}
    want, want_state = module.prefill_k_last(**last)
    assert torch.equal(output, want)
    assert torch.equal(state, want_state.mT)
    assert not torch.equal(state, want_state)


def test_decode_k_first_is_k_last_with_transposed_states() -> None:
    found = definition("gdn_decode_k_last")
    inputs = arguments(found, drawn(found), F64)
    output, state = gdn.decode_k_last(**inputs)
    got, got_state = gdn.decode_k_first(**inputs | {"state": inputs["state"].mT})
    assert torch.equal(got, output)
    assert torch.equal(got_state, state.mT)


def test_absent_gates_and_state_mean_ones_and_zeros() -> None:
    inputs = prefill_inputs() | {"g": None, "beta": None, "initial_state": None}
    explicit = inputs | {
        "g": torch.ones(8, 4, dtype=F64),
        "beta": torch.ones(8, 4, dtype=F64),
        "initial_state": torch.zeros(3, 4, 4, 4, dtype=F64),
    }
    for got, want in zip(gdn.prefill_k_last(**inputs), gdn.prefill_k_last(**explicit), strict=True):
        assert torch.equal(got, want)
    zeros = explicit | {"g": torch.zeros(8, 4, dtype=F64)}
    for got, want in zip(gdn.prefill_k_first(**inputs), gdn.prefill_k_first(**zeros), strict=True):
        assert torch.equal(got, want)


# --- sequences --------------------------------------------------------------------------------------------------


@named(PREFILLS)
@pytest.mark.parametrize("lengths", [(0, 4, 2), (4, 0, 2), (4, 2, 0), (0,), (0, 0)])
def test_an_empty_sequence_keeps_its_initial_state(function: Prefill, lengths: tuple[int, ...]) -> None:
    inputs = inputs_of(function, lengths=lengths)
    _, state = function(**inputs)
    _, without = function(**inputs | {"initial_state": None})
    for n, length in enumerate(lengths):
        if length == 0:
            assert torch.equal(state[n], inputs["initial_state"][n])
            assert not without[n].any()
        else:
            assert not torch.equal(state[n], inputs["initial_state"][n])


@named(PREFILLS)
def test_sequences_do_not_know_of_each_other(function: Prefill) -> None:
    inputs = inputs_of(function, lengths=(7, 0, 70))
    output, state = function(**inputs)
    tail = {name: inputs[name][7:] for name in ("q", "k", "v", "g", "beta")}
    alone = inputs | tail | {"cu_seqlens": torch.tensor([0, 70]), "initial_state": inputs["initial_state"][2:]}
    output_alone, state_alone = function(**alone)
    assert torch.equal(output[7:], output_alone)
    assert torch.equal(state[2:], state_alone)


@named(PREFILLS)
def test_a_sequence_continues_from_the_state_that_its_first_half_left(function: Prefill) -> None:
    inputs = inputs_of(function, lengths=(90,))
    output, state = function(**inputs)
    for start, stop in ((0, 37), (37, 90)):
        part = {name: inputs[name][start:stop] for name in ("q", "k", "v", "g", "beta")}
        inputs_part = inputs | part | {"cu_seqlens": torch.tensor([0, stop - start])}
        rows, left = function(**inputs_part)
        torch.testing.assert_close(rows, output[start:stop], rtol=1e-10, atol=1e-12)
        inputs["initial_state"] = left
    torch.testing.assert_close(left, state, rtol=1e-10, atol=1e-12)


# --- gates ------------------------------------------------------------------------------------------------------


@named(PREFILLS)
def test_a_reset_forgets_everything_before_it_exactly(function: Prefill) -> None:
    inputs = inputs_of(function, lengths=(80,))
    inputs["g"][66] = -math.inf if k_first(function) else 0.0
    output, state = function(**inputs)
    assert torch.isfinite(output).all()
    assert torch.isfinite(state).all()
    # Whatever came before the reset has no influence, however large.
    changed = inputs | {"v": inputs["v"].clone(), "initial_state": 1e6 * inputs["initial_state"]}
    changed["v"][:66] *= -3e4
    output_changed, state_changed = function(**changed)
    assert torch.equal(output[66:], output_changed[66:])
    assert torch.equal(state, state_changed)


@named(PREFILLS)
def test_resets_at_every_token_give_no_nan(function: Prefill) -> None:
    inputs = inputs_of(function, lengths=(70,))
    inputs["g"] = torch.full_like(inputs["g"], -math.inf if k_first(function) else 0.0)
    output, state = function(**inputs)
    assert torch.isfinite(output).all()
    assert torch.isfinite(state).all()


def exact_softplus(x: float) -> Decimal:
    with localcontext() as context:
        context.prec = 80
        return (1 + Decimal(x).exp()).ln()


@pytest.mark.parametrize("x", [-700.0, -80.0, -20.0, -1.0, 0.0, 1e-9, 1.0, 19.9, 20.1, 30.0, 100.0, 800.0])
def test_softplus_is_exact_for_every_x(x: float) -> None:
    got = gdn.softplus(torch.tensor(x, dtype=F64)).item()
    assert got == pytest.approx(float(exact_softplus(x)), rel=4e-16)


@pytest.mark.parametrize("x", [-80.0, -20.0, 0.0, 15.0, 20.5, 80.0])
def test_softplus_is_exact_in_float32_too(x: float) -> None:
    got = gdn.softplus(torch.tensor(x)).item()
    assert got == pytest.approx(float(exact_softplus(x)), rel=2e-7)


def test_the_raw_gate_reaches_zero_and_one_without_nan() -> None:
    a = torch.tensor([2.0**27, math.inf, -100.0, 0.0])
    alpha = gdn.forget_gate_raw(torch.zeros(4), a, torch.zeros(4))
    assert alpha.tolist() == [0.0, 0.0, 1.0, 0.5]


# --- scale, norm, heads -----------------------------------------------------------------------------------------


@named(PREFILLS)
def test_an_absent_scale_is_one_over_the_root_of_the_head_size_and_zero_is_zero(function: Prefill) -> None:
    inputs = inputs_of(function, size=4)
    absent, state = function(**inputs)
    half, _ = function(**inputs | {"scale": 0.5})
    zero, state_zero = function(**inputs | {"scale": 0.0})
    assert absent.any()
    assert torch.equal(absent, half)
    assert not zero.any()
    assert torch.equal(state, state_zero)


def test_the_epsilon_of_the_norm_stands_inside_the_root() -> None:
    x = torch.tensor([3e-4, 4e-4], dtype=F64)  # |x|^2 = 2.5e-7, a quarter of epsilon
    want = x / math.sqrt(2.5e-7 + 1e-6)
    torch.testing.assert_close(gdn.l2_normalise(x), want, rtol=1e-14, atol=0)
    assert not gdn.l2_normalise(torch.zeros(2)).any()


@named(DECODES)
def test_decode_normalises_q_and_k_only_where_told(function: Prefill) -> None:
    found = definition(f"gdn_{function.__name__}")
    inputs = arguments(found, drawn(found), F64)
    assert inputs["use_qk_l2norm"] is True
    normalised = inputs | {name: gdn.l2_normalise(inputs[name]) for name in "qk"} | {"use_qk_l2norm": False}
    for got, want in zip(function(**inputs), function(**normalised), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
    as_they_are = function(**inputs | {"use_qk_l2norm": False})
    assert relative_error(as_they_are[0], function(**inputs)[0]) > 0.1


@named(PREFILLS)
@pytest.mark.parametrize("heads", [(2, 2, 6), (6, 2, 2)], ids=["GVA", "GQA"])
def test_each_key_head_serves_a_contiguous_group(function: Prefill, heads: tuple[int, int, int]) -> None:
    inputs = inputs_of(function, lengths=(10,), heads=heads)
    before, before_state = function(**inputs)
    inputs["k"][:, 1] = 0.0
    after, after_state = function(**inputs)
    changed = [h for h in range(6) if not torch.equal(before[:, h], after[:, h])]
    assert changed == [3, 4, 5]  # h // 3 == 1
    changed = [h for h in range(6) if not torch.equal(before_state[:, h], after_state[:, h])]
    assert changed == [3, 4, 5]


@named(PREFILLS)
def test_each_value_head_of_gqa_serves_a_contiguous_group(function: Prefill) -> None:
    inputs = inputs_of(function, lengths=(10,), heads=(6, 2, 2))
    before, _ = function(**inputs)
    inputs["v"][:, 0] = 0.0
    after, _ = function(**inputs)
    assert [h for h in range(6) if not torch.equal(before[:, h], after[:, h])] == [0, 1, 2]


@named(DECODES)
def test_each_query_head_of_decode_serves_a_contiguous_group(function: Prefill) -> None:
    found = definition(f"gdn_{function.__name__}")
    inputs = arguments(found, drawn(found, "synthetic-gva-2x6-d128"))
    before, _ = function(**inputs)
    inputs["q"][:, :, 1] = 0.0
    after, _ = function(**inputs)
    assert [h for h in range(6) if not torch.equal(before[..., h, :], after[..., h, :])] == [3, 4, 5]


# --- types ------------------------------------------------------------------------------------------------------


def with_stored_types(inputs: Keywords) -> Keywords:
    floats = {name: inputs[name].to(torch.bfloat16) for name in "qkv"}
    return inputs | floats | {name: inputs[name].float() for name in ("g", "beta", "initial_state")}


@named(PREFILLS)
def test_bfloat16_in_gives_bfloat16_out_and_a_float32_state(function: Prefill) -> None:
    inputs = with_stored_types(inputs_of(function))
    for state in (inputs["initial_state"], None):
        output, final = function(**inputs | {"initial_state": state})
        assert (output.dtype, final.dtype) == (torch.bfloat16, torch.float32)


@named(PREFILLS)
def test_float64_in_gives_float64_out(function: Prefill) -> None:
    output, state = function(**inputs_of(function))
    assert (output.dtype, state.dtype) == (F64, F64)


@named(DECODES)
def test_decode_keeps_the_types_of_v_and_of_the_state(function: Prefill) -> None:
    found = definition(f"gdn_{function.__name__}")
    inputs = drawn(found)
    assert [x.dtype for x in function(**arguments(found, inputs))] == [torch.bfloat16, torch.float32]
    assert [x.dtype for x in function(**arguments(found, inputs, F64))] == [F64, F64]


@named(PREFILLS)
def test_the_output_is_rounded_once_at_the_end(function: Prefill) -> None:
    inputs = with_stored_types(inputs_of(function))
    rounded, _ = function(**inputs)
    exact, _ = function(**inputs | {name: inputs[name].float() for name in "qkv"})
    assert exact.dtype == torch.float32
    assert torch.equal(rounded, exact.to(torch.bfloat16))


# --- what a caller relies on ------------------------------------------------------------------------------------


@named([*PREFILLS, gdn.prefill_checkpoints, chunkwise.prefill_checkpoints, *DECODES])
def test_inputs_are_left_as_they_were(function: Prefill) -> None:
    found = definition(f"gdn_{function.__name__}")
    inputs = arguments(found, drawn(found, lengths=(70, 0, 3)) if "prefill" in function.__name__ else drawn(found))
    before = {name: x.clone() for name, x in inputs.items() if isinstance(x, Tensor)}
    results = function(**inputs)
    for result in results:
        result.fill_(7.0)  # nor do results share memory with inputs
    for name, x in before.items():
        assert torch.equal(inputs[name], x), name
