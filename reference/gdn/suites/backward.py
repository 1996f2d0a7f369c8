"""Rows of the gradients of prefill."""

from collections.abc import Iterator

from .far import LONG_ROWS, far
from .heads import (
    D120,
    GQA,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GROUPS_OF_7,
    QWEN3_NEXT,
    QWEN_397B,
    QWEN_397B_TP4,
    SMALL,
    SMALL_128,
)
from .line import RAGGED_16, Line
from .prefill import prefill

# Keys alike are in the strict suite: T in one bfloat16 term leaves too little of their gradients to judge.
REGIMES = (
    "typical", "long_memory", "slow_decay", "fast_decay", "hard_reset", "beta_zero", "beta_one", "beta_two",
    "large_initial_state", "one_large_state", "single_cotangent", "tiny_cotangents", "huge_cotangents",
    "blank_tokens",
)  # fmt: skip
# For kernels that serve head size 128 alone.
OF_128 = (
    "long_memory", "fast_decay", "hard_reset", "beta_zero", "beta_two", "one_large_state", "single_cotangent",
    "tiny_cotangents", "huge_cotangents", "blank_tokens",
)  # fmt: skip
REGIONS = (*(8,) * 6, 0, *(8,) * 10, 66)
FROM_OUTPUT, FROM_STATE, NO_COTANGENTS = {"omit": ["dht"]}, {"omit": ["do"]}, {"omit": ["do", "dht"]}
STATE_FROM_ZEROS, NO_STATES = {"omit": ["initial_state", "do"]}, {"omit": ["initial_state", "dht"]}
# Of hundreds of sums that may cancel, one nearly does with most seeds. Here honest arithmetic keeps within a budget.
SEEDS = {
    "one_cotangent": 2, "regime_typical": 8, "regime_one_large_state": 8, "regime_single_cotangent": 1,
    "qwen3_next_heads": 3, "groups_of_seven": 1,
    "regime_single_cotangent_128": 2, "regime_tiny_cotangents_128": 1, "strict_gates_forget": 7,
}  # fmt: skip


def seeded(line: Line) -> Line:
    return line | ({"seed": SEEDS[line["name"]]} if line["name"] in SEEDS else {})


def backward_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (3, 63, 65), covers="sequences of 3, 63 and 65 tokens together")
    yield prefill("empty_sequences", GROUPS, "slow_decay", (0, 17, 0, 20, 0), covers="no tokens: dh0 is dht")
    yield prefill("resets", SMALL, "hard_reset", (70,), covers="alpha = 0: finite, and dg right")
    one = prefill("one_cotangent", SMALL, "single_cotangent", (40, 9), covers="zeros behind the only cotangent")
    yield seeded(one)
    yield prefill("gqa", GQA, "typical", (33, 31), covers="more query heads than key heads: dk and dv are sums")
    yield prefill(
        "only_required", SMALL, "typical", (50,), omit=["g", "beta", "initial_state", "dht"],
        covers="every optional input left out but do",
    )  # fmt: skip


def backward_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        lengths = (65, 64) if regime == "single_cotangent" else (65, 9, 130, 64)
        yield seeded(prefill(f"regime_{regime}", GROUPS, regime, lengths, covers=f"the regime {regime}"))
    for regime in OF_128:
        line = prefill(f"regime_{regime}_128", GROUPS_128, regime, (65, 9, 64), covers="the same at head size 128")
        yield seeded(line)
    yield prefill("padded_batch", SMALL_128, "typical", (100, 100), covers="sequences equally long")
    yield prefill("all_empty", SMALL, "typical", (0, 0, 0), covers="empty sequences alone")
    yield prefill("groups_of_three", GROUPS_OF_3, "slow_decay", (65, 30), covers="sums over three value heads")
    yield prefill("head_size_120", D120, "slow_decay", (129, 64), covers="a head size that no power of two divides")
    yield prefill("gqa_resets", GQA, "hard_reset", (129, 0, 20), covers="GQA with resets and an empty sequence")
    yield seeded(prefill("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), covers="16 and 32 heads"))
    yield prefill("long_memory_long", SMALL, "long_memory", (640, 129), covers="many chunks that forget nothing")
    yield prefill("drift", SMALL, "slow_decay", (4000,), covers="drift over 4,000 tokens")
    yield prefill("from_output", GROUPS_128, "slow_decay", (65, 0, 64), **FROM_OUTPUT, covers="dht absent: zeros")
    yield prefill("from_state", GROUPS_128, "slow_decay", (65, 0, 64), **FROM_STATE, covers="do absent: zeros")
    yield prefill(
        "from_zeros", SMALL, "slow_decay", (70, 0, 5), omit=["initial_state"],
        covers="no initial state: dg of the first token is 0, and dh0 is not",
    )  # fmt: skip
    yield prefill("scale_zero", SMALL, "slow_decay", (70,), scalars={"scale": 0.0}, covers="scale 0.0 is no absent one")
    line = prefill("groups_of_seven", GROUPS_OF_7, "slow_decay", (33, 9), covers="35 heads, sums over seven of them")
    yield seeded(line)
    yield prefill("states_absent", SMALL, "slow_decay", (70, 0, 5), **NO_STATES, covers="as in training: no states")
    covers = "the same at head size 128"
    yield prefill("states_absent_128", GROUPS_128, "slow_decay", (130, 0, 9), **NO_STATES, covers=covers)


def far_backward() -> Iterator[Line]:
    """All heads of a sample of sequences: dq and dk are sums over heads. Sequences of a few tokens at least."""
    yield prefill(
        "past_2_31_values",
        QWEN_397B,
        "typical",
        LONG_ROWS,
        **far(4, None),
        covers="more than 2^31 elements of v and do",
    )
    yield prefill(
        "past_2_31_states", QWEN3_NEXT, "typical", (8, 9, 0, 8, 10) * 820, **far(4, None),
        covers="more than 2^31 elements of states, 131,200 pairs",
    )  # fmt: skip


def backward_strict() -> Iterator[Line]:
    yield prefill("strict_repeated", SMALL, "repeated_keys", (64, 30), covers="one key, beta up to 1.95")
    yield prefill("strict_near_parallel", GROUPS, "near_parallel_keys", (70,), covers="nearly one key")
    forget = prefill("strict_gates_forget", GROUPS, "forget_regions", REGIONS, covers="each region of its gate")
    yield seeded(forget)
    yield prefill("strict_gates_write", GROUPS, "write_regions", REGIONS, covers="each region of the gate that writes")
    yield prefill("strict_128", SMALL_128, "repeated_keys", (128,), covers="one key over two chunks")
    yield prefill("strict_keys", SMALL, "strict_keys", (100, 30), covers="one key, beta from 1.9 to 2")
    yield prefill("strict_keys_128", SMALL_128, "strict_keys", (193,), covers="the same over three chunks")


def backward_performance() -> Iterator[Line]:
    """A sample of sequences is judged with all heads: dq and dk are sums over them."""
    for label, preset in (("4x16", QWEN_397B_TP4), ("16x32", QWEN3_NEXT), ("16x64", QWEN_397B)):
        yield prefill(f"{label}_1x8192", preset, "typical", (8192,), drawn="device", **SAMPLED)
        yield prefill(f"{label}_4x2048", preset, "typical", (2048,) * 4, drawn="device", **SAMPLED)
        yield prefill(f"{label}_ragged_16", preset, "typical", RAGGED_16, drawn="device", **SAMPLED)


SAMPLED = {"judged": far(2, None)["judged"]}

BACKWARD = {
    "smoke": backward_smoke, "conformance": backward_conformance, "strict": backward_strict,
    "performance": backward_performance,
}  # fmt: skip
