"""Rows of the gradients of what stands around the rule. All are by hand: see `BY_HAND` of covering/names.py."""

from collections.abc import Iterator

from .backward import FROM_OUTPUT, FROM_STATE, NO_COTANGENTS, NO_STATES, REGIONS, STATE_FROM_ZEROS
from .decode import decode
from .heads import (
    D120,
    GQA,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GROUPS_OF_7,
    GVA_D120,
    K64_V120,
    ONE_NARROW,
    QWEN3_NEXT,
    QWEN_397B_TP4,
    QWEN_TP4,
    SMALL,
    SMALL_128,
)
from .line import RAGGED_16, Line, Rows
from .many import many_decode
from .norm import norm_conformance, norm_performance, norm_smoke
from .prefill import prefill

# --- from raw gates ---------------------------------------------------------------------------------------------

# A raw gate that is saturated has a gradient of nothing; a sigmoid does not reach a beta above 1.
RAW_REGIMES = (
    "long_memory", "slow_decay", "fast_decay", "hard_reset", "beta_zero", "beta_one", "large_steps",
    "large_initial_state", "one_large_state", "sparse_gates", "interleaved_gates", "padded_tails", "in_turn",
    "single_cotangent", "tiny_cotangents", "huge_cotangents", "tiny_keys",
    "large_activations", "steep_at_first", "overflowing_rates", "blank_tokens",
)  # fmt: skip
FEW_SEQUENCES = ("fast_decay", "single_cotangent", "steep_at_first")  # where little is left of a gate's gradient
# Where honest arithmetic keeps within a budget: sums of products may cancel.
SEEDS = {
    "regime_hard_reset": 5, "regime_large_steps": 6, "regime_sparse_gates": 2, "regime_padded_tails": 2,
    "regime_in_turn": 4, "regime_single_cotangent": 6, "regime_steep_at_first": 3,
    "regime_large_activations": 1, "from_zeros": 1,
    "sums_2100": 2, "qwen3_next_heads": 1, "4x16_1x2048": 1, "4x16_ragged": 1,
}  # fmt: skip
WITHOUT_NORM = {"scalars": {"use_qk_l2norm": False}}


def seeded(line: Line, seeds: dict[str, int] = SEEDS) -> Line:
    return line | ({"seed": seeds[line["name"]]} if line["name"] in seeds else {})


def raw_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (5, 63, 65), covers="sequences of 5, 63 and 65 tokens together")
    yield prefill("empty", GROUPS, "typical", (0, 17, 0, 20, 0), covers="no tokens: dh0 is dht")
    yield prefill("without_norm", SMALL, "typical", (40, 9), **WITHOUT_NORM, covers="q and k as they are given")
    yield prefill("gqa", GQA, "typical", (33, 31), covers="more query heads than key heads: dk and dv are sums")
    yield prefill(
        "only_required", SMALL, "typical", (50,), omit=["initial_state", "dht"],
        covers="every optional input left out but do",
    )  # fmt: skip


def raw_conformance() -> Iterator[Line]:
    for regime in RAW_REGIMES:
        lengths = (65, 0, 64) if regime in FEW_SEQUENCES else (65, 9, 20, 64, 0, 33, 12)
        yield seeded(prefill(f"regime_{regime}", GROUPS, regime, lengths, covers=f"the regime {regime}"))
    yield prefill("all_empty", SMALL, "typical", (0, 0, 0), covers="empty sequences alone: all sums are 0")
    yield prefill("groups_of_three", GROUPS_OF_3, "slow_decay", (65, 30), covers="sums over three value heads")
    yield prefill("groups_of_seven", GROUPS_OF_7, "slow_decay", (33, 9), covers="35 heads, sums over seven of them")
    yield prefill("head_size_120", D120, "slow_decay", (129, 64), covers="a head size that no power of two divides")
    yield prefill("gqa_resets", GQA, "hard_reset", (129, 0, 20), covers="GQA with resets and an empty sequence")
    yield seeded(prefill("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), covers="16 and 32 heads"))
    yield prefill("long", SMALL, "slow_decay", (1000,), covers="sums over 1,000 tokens")
    yield seeded(prefill("sums_2100", "heads-1x1x1-d16", "slow_decay", (2100,), covers="sums over 2,100 tokens"))
    yield prefill("many", SMALL, "typical", (9,) * 66, covers="sums over more sequences than a block of them")
    yield prefill("from_output", GROUPS_128, "slow_decay", (65, 0, 64), **FROM_OUTPUT, covers="dht absent: zeros")
    yield prefill("from_state", GROUPS_128, "slow_decay", (65, 0, 64), **FROM_STATE, covers="do absent: zeros")
    yield seeded(
        prefill("from_zeros", SMALL, "slow_decay", (70, 0, 5), omit=["initial_state"], covers="dht without a state")
    )
    yield prefill(
        "state_from_zeros", SMALL, "slow_decay", (33, 0, 9), **STATE_FROM_ZEROS, covers="dht alone, without a state"
    )
    yield prefill("no_cotangents", GROUPS, "typical", (20, 0, 9), **NO_COTANGENTS, covers="no gradient: zeros, not NaN")
    yield prefill("scale_zero", SMALL, "slow_decay", (70,), scalars={"scale": 0.0}, covers="scale 0.0 is no absent one")
    yield prefill(
        "scale_negative", GROUPS, "slow_decay", (70,), scalars={"scale": -1.5, "use_qk_l2norm": False},
        covers="a negative scale, q and k as they are given",
    )  # fmt: skip
    yield prefill(
        "scale_large", SMALL, "slow_decay", (70,), scalars={"scale": 1e6}, covers="a scale that nobody cuts off"
    )
    yield prefill("scale_small", SMALL, "slow_decay", (70,), scalars={"scale": 1e-6}, covers="a scale that is no 0")
    yield prefill(
        "scale_below_zero", SMALL, "slow_decay", (70,), scalars={"scale": -1.5}, covers="a negative scale with the norm"
    )
    yield prefill(
        "scale_zero_without_norm", SMALL, "slow_decay", (70,), scalars={"scale": 0.0, "use_qk_l2norm": False},
        covers="scale 0.0, q and k as they are given",
    )  # fmt: skip
    yield prefill("sequences_300", "heads-1x1x1-d16", "slow_decay", (4, 0, 5) * 100, covers="sums over 300 sequences")


def raw_strict() -> Iterator[Line]:
    yield prefill("strict_gates_forget", GROUPS, "forget_regions", REGIONS, covers="each region of the gate")
    yield prefill("strict_gates_write", GROUPS, "write_regions", REGIONS, covers="each region of the gate that writes")
    yield prefill("strict_128", SMALL_128, "slow_decay", (129, 64), covers="head size 128 in careful arithmetic")


def raw_performance() -> Iterator[Line]:
    """All of a call is judged, because parameters get sums over it. So the rows are small."""
    yield seeded(prefill("4x16_1x2048", QWEN_397B_TP4, "slow_decay", (2048,)))
    yield seeded(prefill("4x16_ragged", QWEN_397B_TP4, "slow_decay", RAGGED_16[:3]))


RAW = {"smoke": raw_smoke, "conformance": raw_conformance, "strict": raw_strict, "performance": raw_performance}


# --- of the gated norm ------------------------------------------------------------------------------------------


def norm_backward_conformance() -> Iterator[Line]:
    """The rows of the norm, and those of cotangents."""
    yield from norm_conformance()
    yield from many_decode()
    yield decode("regime_blank_tokens", GROUPS_128, "blank_tokens", 40, covers="x, z and weights of zeros")
    for regime in ("tiny_cotangents", "huge_cotangents", "large_activations"):
        yield decode(f"regime_{regime}", GROUPS_128, regime, 9, covers=f"the regime {regime}")
    yield decode("gates_write", GROUPS, "write_regions", 18, covers="each region of silu and of its slope")
    yield decode("sum_2000", SMALL, "typical", 2000, covers="dweight over 4,000 vectors")


NORM_BACKWARD = {"smoke": norm_smoke, "conformance": norm_backward_conformance, "performance": norm_performance}


# --- of the convolution -----------------------------------------------------------------------------------------


def conv_backward_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (1, 70, 2, 129), covers="sequences around the kernel's width and a block")
    yield prefill("shorter", GROUPS, "typical", (1, 1, 2, 2, 3, 3), covers="sequences shorter than the kernel")
    yield prefill("empty", SMALL, "typical", (0, 5, 0, 0), covers="empty sequences: dh0 is dht")
    yield prefill("width_2", D120, "typical", (1, 40, 65), covers="a kernel of two tokens")
    yield prefill("width_3", GVA_D120, "typical", (2, 1, 66), omit=["bias"], covers="a kernel of three tokens, no bias")
    yield prefill(
        "only_required", SMALL, "typical", (50, 3), omit=["bias", "initial_state", "dht"],
        covers="every optional input left out but do",
    )  # fmt: skip


def conv_backward_conformance() -> Iterator[Line]:
    yield prefill("no_tokens", SMALL, "typical", (0,), covers="no tokens at all: all sums are 0")
    yield prefill("widest", QWEN3_NEXT, "typical", (5, 1, 2), covers="8192 channels of a real model")
    yield prefill("large_states", GROUPS_OF_3, "large_initial_state", (33, 64, 1), covers="silu far from 0 at first")
    yield prefill("tiny_inputs", SMALL, "tiny_keys", (33, 2), covers="inputs near 1e-4: the slope of silu is 1 / 2")
    yield prefill("many", SMALL, "typical", (3, 1, 2, 5) * 18, covers="more sequences than a block of them")
    yield prefill("long", SMALL_128, "typical", (700, 1, 290), covers="many blocks of tokens")
    yield prefill("from_output", GROUPS_128, "typical", (65, 0, 64), **FROM_OUTPUT, covers="dht absent: zeros")
    yield prefill("from_state", GROUPS_128, "typical", (65, 0, 2), **FROM_STATE, covers="do absent: zeros")
    yield prefill("from_zeros", SMALL, "typical", (9, 1, 0), omit=["initial_state"], covers="no initial state: zeros")
    yield prefill("state_from_zeros", SMALL, "typical", (9, 1, 0), **STATE_FROM_ZEROS, covers="dht alone, no state")
    yield prefill("no_cotangents", SMALL, "typical", (9, 1, 0), **NO_COTANGENTS, covers="no gradient: zeros, not NaN")
    for name, other in (("from_zeros", "initial_state"), ("from_state", "do")):
        covers = f"neither bias nor {other}"
        yield prefill(f"{name}_no_bias", SMALL, "typical", (9, 1, 0), omit=["bias", other], covers=covers)
    yield prefill("padded_batch", SMALL, "typical", (33, 33), covers="sequences equally long")
    omitted = ["bias", "dht"]
    yield prefill("from_output_no_bias", SMALL, "typical", (9, 1, 0), omit=omitted, covers="a state, no bias, no dht")
    yield prefill("states_absent", SMALL, "typical", (9, 1, 0), **NO_STATES, covers="a bias, and no states")
    yield prefill("tokens_1900", ONE_NARROW, "typical", (1900,), covers="sums over 1,900 tokens")
    yield prefill("tokens_65600", ONE_NARROW, "typical", (65_600,), covers="sums over more than 65,535 tokens")
    yield prefill("sequences_1800", ONE_NARROW, "typical", (1, 0, 2) * 600, covers="1,800 sequences")
    yield prefill("sequences_2200", ONE_NARROW, "typical", (1, 2) * 1100, covers="more than 2,048 sequences")
    yield prefill(
        "regime_blank_tokens", GROUPS, "blank_tokens", (65, 9, 2), omit=["bias"], covers="silu and its slope at 0"
    )
    for regime in ("single_cotangent", "tiny_cotangents", "huge_cotangents"):
        yield prefill(f"regime_{regime}", GROUPS, regime, (65, 9, 2), covers=f"the regime {regime}")


def conv_backward_performance() -> Iterator[Line]:
    for name, lengths in (("1x2048", (2048,)), ("4x2048", (2048,) * 4)):
        yield prefill(f"16x32_{name}", QWEN3_NEXT, "typical", lengths, omit=["bias"])


CONV_BACKWARD = {
    "smoke": conv_backward_smoke, "conformance": conv_backward_conformance, "performance": conv_backward_performance,
}  # fmt: skip


# --- of the layer -----------------------------------------------------------------------------------------------

LAYER_SEEDS = {
    "ragged": 1, "shorter": 7, "k64_v120": 1, "only_required": 2, "large_states": 2, "long": 2, "many": 1,
    "regime_large_initial_state": 2, "regime_huge_cotangents": 3, "regime_sparse_gates": 12, "without_dht": 10,
    "qwen3_next_tp4_1x1024": 2,
}  # fmt: skip


def layer_backward_smoke() -> Iterator[Line]:
    yield prefill("ragged", GROUPS, "typical", (5, 65, 8), covers="sequences around one chunk")
    yield prefill("empty", SMALL, "typical", (0, 40, 0), covers="empty sequences: what their states get is handed on")
    yield prefill("shorter", GROUPS_OF_3, "typical", (1, 2, 1), covers="shorter than the kernel, three heads a key")
    yield prefill("k64_v120", K64_V120, "typical", (30, 2), covers="heads of values wider than those of keys")
    yield prefill(
        "only_required", SMALL, "typical", (50, 3), omit=["dconv_ht", "dht"], covers="no gradient of states after it"
    )  # fmt: skip


def layer_backward_conformance() -> Iterator[Line]:
    yield prefill("no_tokens", SMALL, "typical", (0,), covers="no token at all: all weights get 0")
    yield prefill("width_2", D120, "typical", (20, 4), covers="a kernel of two tokens, as many keys as values")
    yield prefill("large_states", GROUPS_128, "large_initial_state", (33, 20), covers="large states")
    yield prefill("long", SMALL_128, "typical", (300,), covers="many chunks")
    yield prefill("many", SMALL, "typical", (5,) * 34, covers="sums over more sequences than a block of them")
    for regime in ("large_initial_state", "tiny_cotangents", "huge_cotangents", "sparse_gates", "blank_tokens"):
        lengths = (20, 9, 16) if regime == "sparse_gates" else (65, 9, 20)
        yield prefill(f"regime_{regime}", GROUPS, regime, lengths, covers=f"the regime {regime}")
    yield prefill("without_dht", GROUPS, "typical", (20, 9, 33), omit=["dht"], covers="dht absent: zeros")
    yield prefill("without_dconv", GROUPS, "typical", (20, 2, 9), omit=["dconv_ht"], covers="dconv_ht absent: zeros")


def layer_backward_performance() -> Iterator[Line]:
    yield prefill("qwen3_next_tp4_1x1024", QWEN_TP4, "typical", (1024,))


def of_layer(rows: Rows) -> Rows:
    return lambda: (seeded(line, LAYER_SEEDS) for line in rows())


LAYER_BACKWARD = {
    "smoke": of_layer(layer_backward_smoke), "conformance": of_layer(layer_backward_conformance),
    "performance": of_layer(layer_backward_performance),
}  # fmt: skip
