"""Drawn inputs: the same bytes on every machine, the property that each regime promises, and what is no valid input."""

import hashlib
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.catalog.families import family
from gdnspec.catalog.workloads import by_name, workloads
from gdnspec.inputs.array import to_bfloat16
from gdnspec.inputs.contract import RegimeError
from gdnspec.inputs.lengths import LONGEST, parse
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.inputs.random import Stream, on_grid
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.torch_arrays import to_torch
from helpers_unit import arguments, drawn, line, reference, run_reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import save_file

REGIMES = family("gdn").about.regimes
PREFILL, LOG, DECODE = (definition(f"gdn_{name}") for name in ("prefill_k_last", "prefill_k_first", "decode_k_last"))
BOTH = pytest.mark.parametrize("found", [PREFILL, LOG], ids=["linear", "log"])
MANY_HEADS = "qwen3-next-80b-a3b-tp4"  # 4 query and key heads, 8 value heads
gdn = reference("gated_delta_net")
GENERATORS, Painter = reference("regimes").GENERATORS, reference("draw").Painter


def values(inputs: Inputs, name: str) -> NDArray[np.float64]:
    return inputs.tensors[name].values().astype(np.float64)


# --- the generator, frozen: a change here changes every workload ------------------------------------------------


def test_the_random_stream_is_frozen() -> None:
    assert [hex(x) for x in Stream(1, "q").raw(3)] == ["0x42922b8fdd3d474f", "0xc7a442dc38bc6eef", "0xf532ef81f6396d8e"]
    assert Stream(1, "q").normal_integers(6).tolist() == [-27985, -19923, 84092, -6685, -17573, -18471]
    assert [x.hex() for x in Stream(1, "q").normal(2)] == ["-0x1.7aaee23ae0ea0p-1", "-0x1.0d974be688c67p-1"]
    assert [x.hex() for x in Stream(1, "q").uniform(2)] == ["0x1.0a48ae3f74f52p-2", "0x1.8f4885b87178ep-1"]


@pytest.mark.parametrize(
    ("found", "name", "sha256"),
    [
        (PREFILL, "k", "74b0017163c899dbb720d6fe3ed06f26dd4f374cdefbbf04c77560959d4aef78"),
        (PREFILL, "g", "bb8aa2e1446eaee26cf3a77d722b8a7dea065837de2d9c9dfca056d19390487e"),
        (PREFILL, "initial_state", "c1c1b065f2d004be0d37073db80f29a901fe0be1dc7c132463270aa052179ecb"),
        (LOG, "g", "89037ec1d5b943493936155e4bd5134d25a583fd48ff26c565a406ce6ec3ced6"),
        (DECODE, "a", "4125b2a1510521788f2126951235f018d88bd4840f33a7150096796c73867357"),
    ],
    ids=lambda x: x if isinstance(x, str) and len(x) < 20 else "",
)
def test_drawn_tensors_are_frozen(found: Found, name: str, sha256: str) -> None:
    assert hashlib.sha256(drawn(found).tensors[name].data.tobytes()).hexdigest() == sha256


def test_normals_and_uniforms_have_their_moments() -> None:
    x, u = Stream(3, "x").normal(100_000), Stream(3, "u").uniform(100_000)
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02
    assert abs((x**3).mean()) < 0.05
    assert abs(u.mean() - 0.5) < 0.01
    assert u.min() > 0
    assert u.max() <= 1


def test_streams_differ_by_seed_and_by_name() -> None:
    first = Stream(1, "q").raw(8)
    assert np.array_equal(first, Stream(1, "q").raw(8))
    assert not np.array_equal(first, Stream(2, "q").raw(8))
    assert not np.array_equal(first, Stream(1, "k").raw(8))


def test_a_stream_does_not_depend_on_how_it_is_cut() -> None:
    stream = Stream(1, "q")
    parts = [stream.raw(count) for count in (1, 5, 2)]
    assert np.array_equal(np.concatenate(parts), Stream(1, "q").raw(8))


# --- bfloat16 ---------------------------------------------------------------------------------------------------

EDGES = [
    0.0, -0.0, 1.0, 1.00390625, 1.01171875, 2.0**-126, 2.0**-133, 2.0**-134, 3e38, 3.3895e38, 3.4e38,
    float(np.nextafter(np.float32(1.00390625), np.float32(2))), 1e-45, -1.99609375,
]  # fmt: skip


def torch_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    return torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_bfloat16_rounds_as_torch_does(numbers: list[float]) -> None:
    x = np.array(numbers, dtype=np.float32)
    assert np.array_equal(to_bfloat16(x), torch_bits(x))


def test_bfloat16_rounds_edges_as_torch_does() -> None:
    x = np.array([*EDGES, *(-y for y in EDGES)], dtype=np.float32)
    assert np.array_equal(to_bfloat16(x), torch_bits(x))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_bfloat16_toward_zero_never_grows_and_is_next_to_the_value(numbers: list[float]) -> None:
    x = np.array(numbers, dtype=np.float32)
    bits = to_bfloat16(x, toward_zero=True)
    back = (bits.astype(np.uint32) << 16).view(np.float32)
    away = ((bits.astype(np.uint32) + 1) << 16).view(np.float32)
    assert (np.abs(back) <= np.abs(x)).all()
    assert (np.isinf(away) | (np.abs(away) > np.abs(x))).all()


# --- what a workload's tensors have in common -------------------------------------------------------------------


@pytest.mark.parametrize("found", [PREFILL, LOG, DECODE], ids=lambda f: f.definition.name)
def test_tensors_have_the_types_and_shapes_of_the_definition_in_its_order(found: Found) -> None:
    inputs = drawn(found)
    contract = found.definition
    tensors = [tensor for tensor in contract.inputs if not tensor.is_scalar]
    assert list(inputs.tensors) == [tensor.name for tensor in tensors]
    for tensor in tensors:
        array = inputs.tensors[tensor.name]
        assert array.dtype == tensor.dtype
        assert array.shape == contract.shape(tensor, inputs.scope)
        assert array.data.flags.c_contiguous


@pytest.mark.parametrize("found", [PREFILL, LOG, DECODE], ids=lambda f: f.definition.name)
@pytest.mark.parametrize("regime", ["typical", "hard_reset", "fast_decay", "beta_one"])
def test_gates_lie_on_a_grid_that_hides_the_last_bit_of_exp(found: Found, regime: str) -> None:
    inputs = drawn(found, MANY_HEADS, regime)
    for name in {"g", "beta", "A_log", "a", "dt_bias", "b"} & inputs.tensors.keys():
        x = values(inputs, name)
        finite = x[np.isfinite(x)]
        assert finite.size
        assert np.array_equal(finite * 2.0**20, np.round(finite * 2.0**20)), name


@pytest.mark.parametrize("states", [pytest.param("", marks=pytest.mark.thorough), "_bf16_state"])
def test_float32_rows_are_of_float32_and_bfloat16_ones_are_those_rounded(states: str) -> None:
    """Else they would hold nothing that rows of bfloat16 do not."""
    wide, narrow = (definition(f"gdn_prefill_from_conv{rows}{states}") for rows in ("_f32_qkv", ""))
    others = {line.name: line for line in workloads(narrow)}
    for row in workloads(wide):
        if row.device == "cuda" or row.axes["total_seq_len"] == 0:
            continue
        x = materialise(wide, row).tensors["qkv"].data
        assert x.dtype == np.float32
        low = x.view(np.uint32) & 0xFFFF  # what a bfloat16 has not
        of_each = [x.shape[1] // 4, x.shape[1] // 2]  # of q, k and v alike
        for part, of_part in zip(np.split(low, of_each, axis=1), np.split(x, of_each, axis=1), strict=True):
            few = part[of_part.any(axis=1)]  # zeros are the same in both
            assert np.count_nonzero(few) > 0.999 * few.size - 2, row.name  # one in 65,536 by chance
        other = others.get(row.name)
        if other is not None and (other.seed, other.preset) == (row.seed, row.preset):
            assert np.array_equal(to_bfloat16(x), materialise(narrow, other).tensors["qkv"].data), row.name


def test_infinities_stay_on_the_grid() -> None:
    assert on_grid(np.array([-np.inf, 0.0, 1 / 3])).tolist() == [-math.inf, 0.0, round(2**20 / 3) / 2**20]


def test_what_is_above_zero_stays_there_on_the_grid() -> None:
    assert (on_grid(np.array([1e-30, 2.0**-22, 2.0**-21, 2.0**-20])) == 2.0**-20).all()
    assert on_grid(np.array([-(2.0**-30), 1.4 * 2.0**-20])).tolist() == [0.0, 2.0**-20]


SOME_RESETS = ("forget_regions", "write_regions", "in_turn")  # regimes that hold a reset where a call is long enough
LINEAR = [found for found in definitions().values() if found.definition.conventions.decay_gate == "linear"]


@pytest.mark.parametrize("found", LINEAR, ids=lambda found: found.definition.name)
def test_alpha_is_zero_where_the_regime_is_a_reset_and_nowhere_else(found: Found) -> None:
    """Typical alphas fall to 1e-20. Rounded to 0, as once, they failed kernels that take logarithms there."""
    seen = 0
    for row in workloads(found):
        has_gate = any(t.draw == "decay_gates" and t.name not in row.omit for t in found.definition.inputs)
        if row.regime is None or row.drawn is not None or not has_gate:
            continue
        alpha = Painter(found.definition, row, row.scope(found.definition, preset_of(found, row))).gate("decay_gates")
        if alpha.size:
            assert row.regime in SOME_RESETS or (alpha == 0).any() == ("reset" in row.regime), row.name
            seen += 1
    assert seen > 10


def renamed(found: Found, old: str, **changes: object) -> Definition:
    """The definition with one input changed."""
    inputs = [t.model_copy(update=changes) if t.name == old else t for t in found.definition.inputs]
    return found.definition.model_copy(update={"inputs": inputs})


def test_an_input_is_drawn_by_what_it_says_and_not_by_its_name() -> None:
    """The name decides about the stream of random numbers alone."""
    found = definition("gdn_decode_k_last")
    row = by_name(found)["one_row"]
    scope = row.scope(found.definition, preset_of(found, row))

    def drawn(contract: Definition, name: str) -> bytes:
        tensor = next(t for t in contract.inputs if t.name == name)
        return Painter(contract, row, scope).paint(tensor).data.tobytes()

    keys = drawn(found.definition, "k")
    assert drawn(renamed(found, "k", draw="queries"), "k") == keys  # which differ where a regime is about keys
    assert drawn(renamed(found, "k", draw="biases"), "k") != keys
    other = renamed(found, "k", name="schluessel")
    assert drawn(other, "schluessel") != keys


@pytest.mark.parametrize(("draw", "why"), [(None, "does not say how it is drawn"), ("noise", "no generator 'noise'")])
def test_an_input_without_a_generator_is_no_input(draw: str | None, why: str) -> None:
    found = definition("gdn_decode_k_last")
    row = by_name(found)["one_row"]
    contract = renamed(found, "a", draw=draw)
    painter = Painter(contract, row, row.scope(contract, preset_of(found, row)))
    with pytest.raises(RegimeError, match=why):
        painter.paint(contract.input("a"))


def others_unchanged(one: Inputs, other: Inputs) -> Iterator[str]:
    for name in one.tensors.keys() & other.tensors.keys():
        assert np.array_equal(one.tensors[name].data, other.tensors[name].data), name
        yield name


@BOTH
@pytest.mark.parametrize("omit", ["g", "beta", "initial_state"])
def test_omitting_an_input_changes_no_other(found: Found, omit: str) -> None:
    whole, rest = drawn(found), drawn(found, omit=[omit])
    assert set(others_unchanged(whole, rest)) == whole.tensors.keys() - {omit}
    assert whole.sha256 != rest.sha256


def test_another_seed_draws_other_numbers_for_every_input() -> None:
    for found in (PREFILL, LOG, DECODE):
        one, other = drawn(found, seed=1), drawn(found, seed=2)
        same = {n for n in one.tensors if np.array_equal(one.tensors[n].data, other.tensors[n].data)}
        assert same <= {"cu_seqlens"}


def test_the_two_layouts_draw_the_same_numbers() -> None:
    last, first = drawn(PREFILL), drawn(LOG)
    for name in ("q", "k", "v", "beta", "cu_seqlens"):
        assert np.array_equal(last.tensors[name].data, first.tensors[name].data), name
    np.testing.assert_allclose(np.exp(values(first, "g")), values(last, "g"), atol=2e-6)


def test_the_same_line_draws_the_same_bytes_and_the_name_is_no_part_of_it() -> None:
    one, again = drawn(PREFILL, name="one"), drawn(PREFILL, name="two", suite="strict")
    assert one.sha256 == again.sha256
    assert set(others_unchanged(one, again)) == set(one.tensors)


def test_scalars_arrive_as_given_or_as_none_or_as_their_default() -> None:
    assert drawn(PREFILL).scalars == {"scale": None}
    assert drawn(PREFILL, scalars={"scale": 0.0}).scalars == {"scale": 0.0}
    assert drawn(DECODE).scalars == {"scale": None, "use_qk_l2norm": True}
    assert drawn(DECODE, scalars={"use_qk_l2norm": False}).scalars == {"scale": None, "use_qk_l2norm": False}


def test_an_omitted_use_qk_l2norm_means_its_default() -> None:
    """The contract says: default true. Left out, the norm is taken."""
    left_out, default = (arguments(DECODE, drawn(DECODE, **more)) for more in ({"omit": ["use_qk_l2norm"]}, {}))
    got, want = run_reference(DECODE, left_out), run_reference(DECODE, default)
    assert torch.equal(got["output"], want["output"])


def test_scalars_are_part_of_what_names_a_call() -> None:
    keys = {drawn(PREFILL, scalars=scalars).key() for scalars in ({}, {"scale": 0.0}, {"scale": 1.0})}
    assert len(keys) == 3


# --- regimes ----------------------------------------------------------------------------------------------------

LENGTHS = (130, 0, 65)


def alpha_of(found: Found, inputs: Inputs) -> NDArray[np.float64]:
    """alpha of every (token, head) in float64, through the reference where the gate is raw."""
    name = found.definition.conventions.decay_gate
    if name == "raw":
        keywords = arguments(found, inputs, torch.float64)
        alpha = gdn.forget_gate_raw(keywords["A_log"], keywords["a"], keywords["dt_bias"])
        return alpha.numpy()[:, 0]
    g = values(inputs, "g")
    return np.exp(g) if name == "log" else g


def beta_of(found: Found, inputs: Inputs) -> NDArray[np.float64]:
    if found.definition.conventions.update_gate == "raw":
        return torch.sigmoid(arguments(found, inputs, torch.float64)["b"]).numpy()[:, 0]
    return values(inputs, "beta")


def norms(inputs: Inputs, name: str) -> NDArray[np.float64]:
    return np.linalg.norm(values(inputs, name), axis=-1)


def test_every_regime_has_a_generator_and_a_description() -> None:
    assert GENERATORS.keys() == REGIMES.keys()
    text = (PREFILL.family.folder / "README.md").read_text().split("\n## 9. ")[1].split("\n## ")[0]
    table = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    assert sorted(re.findall("`(.*?)`", "".join(table))) == sorted(REGIMES)


@BOTH
@pytest.mark.parametrize("name", ["q", "k"])
def test_some_vectors_of_blank_tokens_are_zeros_and_all_others_of_unit_norm(found: Found, name: str) -> None:
    sizes = norms(drawn(found, regime="blank_tokens", lengths=LENGTHS), name)
    assert 0.2 < (sizes == 0).mean() < 0.8
    assert sizes[sizes > 0].min() > 0.99
    assert sizes.max() <= 1


OF_ZEROS = {
    name: row
    for name, found in definitions().items()
    if "backward" not in name and (row := by_name(found).get("regime_blank_tokens"))
}
ACTIVATIONS = ("queries", "keys", "values", "activations", "output_gates", "past_activations")


@pytest.mark.parametrize("name", OF_ZEROS)
def test_rows_of_blank_tokens_have_tokens_of_zeros_and_others_in_every_input(name: str) -> None:
    found = definition(name)
    inputs = materialise(found, OF_ZEROS[name])
    of_tokens = [tensor for tensor in found.definition.inputs if tensor.draw in ACTIVATIONS or tensor.parts]
    assert of_tokens
    for tensor in of_tokens:
        x = values(inputs, tensor.name)
        blank = ~x.reshape(*x.shape[:2], -1).any(axis=-1)
        assert 0 < blank.mean() < 0.9, tensor.name


NOT_OF_UNIT_NORM = ("tiny_keys", "rounding_ties", "blank_tokens")


@BOTH
@pytest.mark.parametrize("regime", [name for name in REGIMES if name not in NOT_OF_UNIT_NORM])
def test_keys_and_queries_have_unit_norm_and_none_is_longer(found: Found, regime: str) -> None:
    inputs = drawn(found, regime=regime, lengths=LENGTHS)
    for name in ("q", "k"):
        assert norms(inputs, name).max() <= 1
        assert norms(inputs, name).min() > 0.99


@BOTH
@pytest.mark.parametrize("regime", [name for name in REGIMES if name != "rounding_ties"])  # of codes alone
def test_every_regime_keeps_its_gates_in_their_domain_and_its_values_finite(found: Found, regime: str) -> None:
    inputs = drawn(found, regime=regime, lengths=LENGTHS)
    alpha, beta = alpha_of(found, inputs), beta_of(found, inputs)
    assert alpha.min() >= 0
    assert alpha.max() <= 1
    assert beta.min() >= 0
    assert beta.max() <= 2
    assert np.abs(values(inputs, "v")).max() < 4
    assert np.isfinite(values(inputs, "initial_state")).all()


ALPHA_RANGES = {
    "long_memory": (1, 1),
    "slow_decay": (0.999, 0.999),
    "fast_decay": (math.exp(-12), math.exp(-2)),
    "repeated_keys": (0.99, 1),
    "near_parallel_keys": (0.99, 1),
    "strict_keys": (0.999, 1),
    "beta_two": (0.9, 1),
    "one_large_state": (0.99, 1),
}


@BOTH
@pytest.mark.parametrize(("regime", "bounds"), ALPHA_RANGES.items())
def test_alpha_lies_where_the_regime_says(found: Found, regime: str, bounds: tuple[float, float]) -> None:
    alpha = alpha_of(found, drawn(found, regime=regime, lengths=LENGTHS))
    low, high = bounds
    assert alpha.min() >= low - 2e-6
    assert alpha.max() <= high + 2e-6
    if low == high:
        assert np.ptp(alpha) == 0
    else:
        assert len(np.unique(alpha)) > alpha.size / 2  # drawn per token and head, never constant


BETA_RANGES = {
    "beta_zero": (0, 0),
    "beta_one": (1, 1),
    "beta_two": (2, 2),
    "strict_keys": (1.9, 2),
    "repeated_keys": (0, 1.95),
    "near_parallel_keys": (0, 1.95),
    "typical": (0, 1),
}


@BOTH
@pytest.mark.parametrize(("regime", "bounds"), BETA_RANGES.items())
def test_beta_lies_where_the_regime_says(found: Found, regime: str, bounds: tuple[float, float]) -> None:
    beta = beta_of(found, drawn(found, regime=regime, lengths=LENGTHS))
    assert beta.min() >= bounds[0]
    assert beta.max() <= bounds[1]
    if bounds[0] != bounds[1]:
        assert np.ptp(beta) > 0.9 * (bounds[1] - bounds[0])


@BOTH
def test_alpha_is_exactly_1_among_decay(found: Found) -> None:
    """At random, in turns, and at the end, where nothing is written either."""
    lengths = (130, 60)
    sparse = alpha_of(found, drawn(found, regime="sparse_gates", lengths=lengths))
    first, second = (sparse[:130] == 1).mean(), (sparse[130:] == 1).mean()
    assert 0.65 < first < 0.85
    assert 0.35 < second < 0.65
    turns = alpha_of(found, drawn(found, regime="interleaved_gates", lengths=lengths)) == 1
    assert (turns[:129] != turns[1:130]).all()
    inputs = drawn(found, regime="padded_tails", lengths=lengths)
    alpha, beta = alpha_of(found, inputs), beta_of(found, inputs)
    for start, tail, stop in ((0, 130 - 43, 130), (130, 190 - 21, 190)):
        assert (alpha[tail:stop] == 1).all()
        assert not beta[tail:stop].any()
        assert (alpha[start:tail] < 1).all()
        assert beta[start:tail].all()
    for regime in ("sparse_gates", "interleaved_gates", "padded_tails"):
        decayed = alpha_of(found, drawn(found, regime=regime, lengths=lengths))
        assert math.exp(-0.31) < decayed.min() < 0.9


@BOTH
def test_a_gate_that_forgets_stands_in_every_region_and_shows_on_its_state(found: Found) -> None:
    """What a small gate leaves is about as large as what is written, or larger: else no judge would see it."""
    inputs = drawn(found, regime="forget_regions", lengths=(1,) * 32)
    with np.errstate(divide="ignore"):
        log_alpha = np.log(alpha_of(found, inputs))
    for low, high in ((-21, -20), (-31, -29), (-46, -44), (-61, -60), (-83, -79), (-9, -8), (-2, -0.5), (-1e-2, 0)):
        assert ((log_alpha >= low) & (log_alpha <= high)).any(), (low, high)
    assert np.isneginf(log_alpha).any()
    states = np.abs(values(inputs, "initial_state")).mean(axis=(2, 3))
    left = states * np.exp(log_alpha)
    assert (left[(log_alpha > -83) & np.isfinite(log_alpha)] > 1).all()
    assert states.max() < 1e36


@BOTH
def test_a_gate_that_writes_stands_in_every_region_on_states_that_are_reset(found: Found) -> None:
    inputs = drawn(found, regime="write_regions", lengths=(2,) * 24)
    alpha, beta = alpha_of(found, inputs), beta_of(found, inputs)
    assert not alpha[::2].any()
    assert (beta[::2] == beta[1::2]).all()
    for low, high in ((0, 0), (1e-31, 1e-29), (1e-11, 1e-9), (1e-6, 1e-4), (0.4, 0.6), (1, 1)):
        assert ((beta >= low) & (beta <= high)).any(), (low, high)


def test_raw_gates_stand_in_every_region_of_softplus_and_sigmoid() -> None:
    """Where it is no line yet and a rate shows it, where 1 + exp(x) is 1, where exp(x) overflows; with float32 states
    that show each."""
    inputs = drawn(DECODE, MANY_HEADS, "forget_regions", batch=18)
    x = (values(inputs, "a")[:, 0] + values(inputs, "dt_bias"))[:, : len(values(inputs, "A_log"))]
    rate = np.exp(values(inputs, "A_log"))
    small = np.log1p(np.exp(-np.abs(x)))
    curved = (x > 8) & (x < 8.3) & (rate * small > 2e-3)
    assert curved.any(), "a softplus that is a line from 8 on is off by more than a state allows"
    assert ((x < -16.7) & (x > -25) & (rate * small > 1e-3)).any(), "log(1 + exp(x)) is 0"
    assert (x > 89).any()
    assert (x < -89).any()
    logits = values(drawn(DECODE, regime="write_regions", batch=18), "b")
    for low, high in ((-129, -127), (-61, -59), (-21, -19), (-9, -7), (-1, 1), (7, 11), (87, 89), (127, 129)):
        assert ((logits >= low) & (logits <= high)).any(), (low, high)


def test_nothing_of_what_came_before_a_reset_is_left_in_w() -> None:
    """Exact zeros, positive ones: in what a library's solver would leave there machines differ."""
    state = definition("gdn_chunk_state")
    (resets,) = (workload for workload in workloads(state) if workload.name == "resets")
    inputs = materialise(state, resets)
    g, w = values(inputs, "g"), inputs.tensors["w"].data
    assert w.dtype == np.uint16
    seen = 0
    for first in range(0, len(g), 64):
        after = np.cumsum(np.isneginf(g[first : first + 64]), axis=0) > 0  # [chunk, heads]
        assert not w[first : first + 64][after].any()
        seen += int(after.sum())
    assert seen > 100


@BOTH
def test_hard_resets_are_exact_and_fall_on_the_edges_of_chunks(found: Found) -> None:
    alpha = alpha_of(found, drawn(found, MANY_HEADS, "hard_reset", lengths=(200,)))
    reset = alpha == 0
    assert 0.1 < reset.mean() < 0.3
    for edge in (0, 63, 64, 127, 128, 191, 192):
        assert reset[edge].any(), edge
        assert not reset[edge].all(), edge


@BOTH
@pytest.mark.parametrize("regime", ["repeated_keys", "strict_keys"])
def test_a_repeated_key_is_one_within_a_sequence_and_head_and_another_elsewhere(found: Found, regime: str) -> None:
    keys = drawn(found, regime=regime, lengths=(70, 20)).tensors["k"].data
    distinct = set()
    for part in (keys[:70], keys[70:]):
        for head in range(part.shape[1]):
            assert (part[:, head] == part[0, head]).all()
            distinct.add(part[0, head].tobytes())
    assert len(distinct) == 4
    queries = drawn(found, regime=regime, lengths=(70, 20)).tensors["q"].data
    assert len(np.unique(queries[:, 0], axis=0)) == 90


@BOTH
def test_near_parallel_keys_are_near_and_not_the_same(found: Found) -> None:
    keys = values(drawn(found, regime="near_parallel_keys", lengths=(70, 20)), "k")
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    within = keys[:70, 0] @ keys[:70, 0].T
    assert within.min() > 0.99
    assert np.sort(within, axis=None)[-71] < 0.9999  # off the diagonal
    assert abs(keys[0, 0] @ keys[70, 0]) < 0.6


@BOTH
def test_a_large_state_decays_by_e_to_the_11_over_every_sequence(found: Found) -> None:
    inputs = drawn(found, regime="decayed_large_state", lengths=(20, 64, 1, 200))
    alpha = alpha_of(found, inputs)
    bounds = np.cumsum([0, 20, 64, 1, 200])
    for start, stop in pairwise(bounds):
        assert np.log(alpha[start:stop]).sum(axis=0) == pytest.approx(-11, abs=0.05)
    assert values(inputs, "initial_state").std() == pytest.approx(3e3, rel=0.05)


@pytest.mark.parametrize(("found", "name"), [(PREFILL, "initial_state"), (LOG, "initial_state"), (DECODE, "state")])
def test_states_have_the_magnitude_of_their_regime(found: Found, name: str) -> None:
    size: dict[str, Any] = {"batch": 4} if found is DECODE else {"lengths": (3, 1, 0, 2)}
    assert values(drawn(found, **size), name).std() == pytest.approx(1, rel=0.05)
    assert values(drawn(found, regime="large_initial_state", **size), name).std() == pytest.approx(100, rel=0.05)
    each = values(drawn(found, regime="one_large_state", **size), name).std(axis=(1, 2, 3))
    assert each == pytest.approx([1e-2, 1e-2, 1e3, 1e-2], rel=0.05)


@pytest.mark.parametrize("found", [PREFILL, DECODE], ids=lambda f: f.definition.name)
def test_tiny_keys_stand_where_the_epsilon_of_the_norm_shows(found: Found) -> None:
    inputs = drawn(found, regime="tiny_keys")
    for name in ("q", "k"):
        assert values(inputs, name).std() == pytest.approx(1e-4, rel=0.1)


def test_decode_keys_have_unit_norm_only_where_the_kernel_takes_no_norm() -> None:
    assert norms(drawn(DECODE), "k").min() > 4  # of 64 normals
    inputs = drawn(DECODE, scalars={"use_qk_l2norm": False})
    assert 0.99 < norms(inputs, "k").min() <= norms(inputs, "k").max() <= 1


def test_raw_gates_reach_the_regimes_alpha() -> None:
    def alpha(regime: str) -> NDArray[np.float64]:
        return alpha_of(DECODE, drawn(DECODE, MANY_HEADS, regime, batch=30))

    assert (alpha("long_memory") == 1).all()
    assert alpha("slow_decay") == pytest.approx(0.999, rel=1e-4)
    assert np.log(alpha("decayed_large_state")) == pytest.approx(-11, rel=0.1)
    assert alpha("fast_decay").max() < 0.2
    zeros = (alpha("hard_reset") == 0).mean()
    assert 0.3 < zeros < 0.9  # every token of a decode is the first of its chunk
    typical = alpha("typical")
    assert typical.min() < 0.5
    assert typical.max() > 0.99


def test_raw_gates_reach_the_regimes_alpha_in_float32_as_well() -> None:
    for regime, exact in (("long_memory", 1.0), ("hard_reset", 0.0)):
        keywords = arguments(DECODE, drawn(DECODE, MANY_HEADS, regime, batch=30), torch.float32)
        alpha = gdn.forget_gate_raw(keywords["A_log"], keywords["a"], keywords["dt_bias"])
        assert alpha.eq(exact).any()
        assert regime == "hard_reset" or alpha.eq(exact).all()


def test_raw_gates_reach_the_regimes_beta() -> None:
    assert beta_of(DECODE, drawn(DECODE, regime="beta_zero")).max() < 1e-50
    assert (beta_of(DECODE, drawn(DECODE, regime="beta_one")) == 1).all()
    keywords = arguments(DECODE, drawn(DECODE, regime="beta_zero"), torch.float32)
    assert not torch.sigmoid(keywords["b"]).any()


@pytest.mark.parametrize("regime", ["beta_two", "strict_keys", "repeated_keys", "near_parallel_keys"])
def test_a_regime_beyond_the_sigmoid_is_refused_for_decode(regime: str) -> None:
    with pytest.raises(InvalidWorkload, match=f"{regime} needs beta up to"):
        drawn(DECODE, regime=regime)


# --- lengths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1,63,1000", [1, 63, 1000, 1, 63]), ("0", [0] * 5), ("7", [7] * 5), ("5,0", [5, 0, 5, 0, 5])],
)
def test_a_list_of_lengths_repeats(text: str, lengths: list[int]) -> None:
    assert parse(text, "--lengths").draw(Stream(1, "lengths"), 5) == lengths


def test_uniform_lengths_fill_their_range_ends_included() -> None:
    drawn_lengths = parse("uniform:3:7", "--lengths").draw(Stream(1, "lengths"), 500)
    assert set(drawn_lengths) == {3, 4, 5, 6, 7}
    assert parse("uniform:4:4", "--lengths").draw(Stream(1, "lengths"), 3) == [4, 4, 4]


def test_lognormal_lengths_lie_about_their_median() -> None:
    drawn_lengths = parse("lognormal:500:1", "--lengths").draw(Stream(1, "lengths"), 2001)
    assert sorted(drawn_lengths)[1000] == pytest.approx(500, rel=0.1)
    assert min(drawn_lengths) >= 1
    assert max(drawn_lengths) > 3000
    assert parse("lognormal:500:0", "--lengths").draw(Stream(1, "lengths"), 2) == [500, 500]
    assert max(parse("lognormal:16000000:10", "--lengths").draw(Stream(1, "lengths"), 100)) == LONGEST


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "1,", "-1", "1,-2", "1.5", "a", "1;2", "16777217", "normal:1:2", "Uniform:1:2",
        "uniform", "uniform:1", "uniform:1:2:3", "uniform:5:4", "uniform:-1:4", "uniform:1.5:4", "uniform:a:b",
        "uniform:0:16777217", "uniform:nan:nan", "uniform:0:inf",
        "lognormal:0:1", "lognormal:10", "lognormal:10:-1", "lognormal:10:11", "lognormal:nan:1", "lognormal:10:nan",
    ],
)  # fmt: skip
def test_any_other_spec_is_refused_with_the_option_and_the_forms(text: str) -> None:
    with pytest.raises(SpecError, match=r"--lengths .*uniform:LO:HI, or lognormal:MEDIAN:SIGMA"):
        parse(text, "--lengths")


# --- what is no valid input -------------------------------------------------------------------------------------


def recorded(tmp_path: Path, found: Found = PREFILL, **changes: Any) -> tuple[Found, Workload]:
    """A workload whose tensors are read from a file: drawn ones, with changes; None leaves a tensor out."""
    inputs = drawn(found)
    tensors: dict[str, Any] = {name: to_torch(array).clone() for name, array in inputs.tensors.items()} | changes
    save_file({k: v.contiguous() for k, v in tensors.items() if v is not None}, tmp_path / "recorded.safetensors")
    workload = line(found).model_dump(exclude_defaults=True, exclude={"regime", "seed", "sequence_lengths"})
    return Found(found.definition, tmp_path, found.family), Workload.model_validate(
        workload | {"tensors": "recorded.safetensors"}
    )


def changed(name: str, value: float, found: Found = PREFILL) -> dict[str, torch.Tensor]:
    """One element of a tensor set to `value`."""
    tensor = to_torch(drawn(found).tensors[name]).clone()
    tensor.view(-1)[5] = value
    return {name: tensor}


def test_recorded_tensors_are_read_bit_for_bit(tmp_path: Path) -> None:
    for found in (PREFILL, DECODE):
        inputs = materialise(*recorded(tmp_path, found))
        assert inputs.sha256 == drawn(found).sha256


def test_recorded_outputs_lie_beside_the_inputs_unread(tmp_path: Path) -> None:
    extra = {"expected.output": torch.zeros(3)}
    assert materialise(*recorded(tmp_path, **extra)).sha256 == drawn(PREFILL).sha256


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("g", -0.25, "g falls to -0.25, below 0"),
        ("g", 1.5, "g rises to 1.5, above 1"),
        ("g", math.nan, "g has values that are not finite"),
        ("g", -math.inf, "g has values that are not finite"),
        ("beta", 2.5, "beta rises to 2.5, above 2"),
        ("beta", -1.0, "beta falls to -1.0, below 0"),
        ("q", math.nan, "q has values that are not finite"),
        ("k", math.inf, "k has values that are not finite"),
        ("v", -math.inf, "v has values that are not finite"),
        ("initial_state", math.nan, "initial_state has values that are not finite"),
        ("k", 4.0, r"beta \* \|k\|\^2 reaches"),
    ],
)
def test_values_outside_their_domain_make_the_workload_invalid(
    tmp_path: Path, name: str, value: float, said: str
) -> None:
    with pytest.raises(InvalidWorkload, match=said):
        materialise(*recorded(tmp_path, **changed(name, value)))


def test_a_log_gate_may_be_minus_infinity_and_nothing_above_zero(tmp_path: Path) -> None:
    assert np.isneginf(values(materialise(*recorded(tmp_path, LOG, **changed("g", -math.inf, LOG))), "g")).any()
    for value, said in ((0.5, "g rises"), (math.inf, "not finite"), (math.nan, "not finite")):
        with pytest.raises(InvalidWorkload, match=said):
            materialise(*recorded(tmp_path, LOG, **changed("g", value, LOG)))


def test_a_long_key_is_bounded_by_its_own_beta(tmp_path: Path) -> None:
    """beta * |k|^2 <= 2: a key of norm 2 may be written with beta 0.5, not with 0.6."""
    k = torch.zeros(8, 2, 64, dtype=torch.bfloat16)
    k[3, 1, 0] = 2.0
    beta = torch.full((8, 4), 2.0)
    beta[3, 2:] = 0.5  # value heads 2 and 3 use key head 1
    materialise(*recorded(tmp_path, k=k, beta=beta))
    beta[3, 3] = 0.6
    with pytest.raises(InvalidWorkload, match=r"reaches 2\.4"):
        materialise(*recorded(tmp_path, k=k, beta=beta))


@pytest.mark.parametrize(
    ("cu_seqlens", "said"),
    [
        ([1, 5, 5, 8], "starts at 0"),
        ([0, 6, 5, 8], "never falls"),
        ([0, 5, 5, 9], "ends at total_seq_len"),
        ([0, 5, 8], "num_seqs"),
        ([0, -1, 5, 8], "never falls"),
        ([[0, 5], [5, 8]], "shape"),
        ([], "shape|num_seqs"),
        (0, "shape"),
    ],
    ids=repr,
)
def test_recorded_cu_seqlens_must_fit_the_axes(tmp_path: Path, cu_seqlens: Any, said: str) -> None:
    with pytest.raises(InvalidWorkload, match=said):
        materialise(*recorded(tmp_path, cu_seqlens=torch.tensor(cu_seqlens, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q": None}, "no tensor 'q', an input of gdn_prefill_k_last"),
        ({"quux": torch.zeros(2)}, "'quux' is not an input of gdn_prefill_k_last"),
        ({"bta": torch.zeros(2)}, "did you mean 'beta'"),
        ({"q": torch.zeros(8, 2, 64)}, "q: the type is float32, not bfloat16"),
        ({"cu_seqlens": torch.tensor([0, 5, 5, 8], dtype=torch.int32)}, "cu_seqlens: the type is int32, not int64"),
        ({"q": torch.zeros(8, 2, 32, dtype=torch.bfloat16)}, r"q: the shape is \[8, 2, 32\], not \[8, 2, 64\]"),
        ({"q": torch.zeros(8, 2, 64, dtype=torch.uint8)}, "q: no definition uses the element type U8"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, dict) else None,
)
def test_a_file_with_other_tensors_is_refused_with_the_tensor(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidWorkload, match=said) as caught:
        materialise(*recorded(tmp_path, **changes))
    assert "recorded.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 7, 8, 60, 0.5, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, keep: float) -> None:
    found, workload = recorded(tmp_path)
    file = tmp_path / "recorded.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(InvalidWorkload, match=r"recorded\.safetensors: not a complete safetensors file"):
        materialise(found, workload)


def test_a_file_that_is_gone_or_a_folder_is_refused(tmp_path: Path) -> None:
    found, workload = recorded(tmp_path)
    (tmp_path / "recorded.safetensors").unlink()
    with pytest.raises(InvalidWorkload, match="No such file"):
        materialise(found, workload)
    (tmp_path / "recorded.safetensors").mkdir()
    with pytest.raises(InvalidWorkload, match="Is a directory"):
        materialise(found, workload)


def test_inputs_with_another_hash_than_the_line_says_are_refused() -> None:
    right = drawn(PREFILL).sha256
    assert drawn(PREFILL, sha256=right).sha256 == right
    with pytest.raises(InvalidWorkload, match=f"{right[:12]}.*000000000000"):
        drawn(PREFILL, sha256="0" * 64)
