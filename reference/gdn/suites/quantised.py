"""Rows of decode and verify on quantised states: slots, heads, regimes, and what only codes and scales have.

All are by hand: conditions meet in the rows of float32 states (`BY_HAND` of covering/names.py).
"""

from collections.abc import Iterator

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line
from .pool import pool
from .slots import SKIPPED, in_place, moved, shared
from .verify import verify

SLICED = {"pool": 192, "pool_scales": 48}  # elements after each slot; codes stay on boundaries of 16 bytes
WIDE = {"pool": 1 << 14, "pool_scales": 256}
AS_THEY_ARE = {"use_qk_l2norm": False}  # keys: a norm would leave no ties
OF_CODES = {
    "zero_states": "rows of zeros before and after: scale 0",
    "codes_at_ends": "all codes at the ends, which some heads keep",
    "rounding_ties": "numbers just between two codes",
}


def quantised_pool_smoke() -> Iterator[Line]:
    yield pool("in_place", GROUPS_128, "typical", 8, in_place("in_place", 4, 8), covers="every state where it was")
    yield pool("moved", SMALL_128, "typical", 12, moved("moved", 5, 12), covers="states written to other slots")
    yield pool("shared", SMALL, "typical", 9, shared("shared", 5, 9), covers="one slot read by all rows")
    one, two, three = in_place("skips", 3, 8)
    skips = [SKIPPED, one, two, SKIPPED, three, SKIPPED]
    yield pool("skips", SMALL_128, "typical", 8, skips, covers="rows skipped first, between and last")
    rows = in_place("strided", 4, 7)
    yield pool("strided", SMALL_128, "typical", 7, rows, gaps=SLICED, covers="a gap between slots of both pools")
    yield pool("resets", SMALL_128, "hard_reset", 9, in_place("resets", 8, 9), covers="alpha = 0 in some heads")
    yield pool("one_slot", SMALL, "slow_decay", 1, [(0, 0)], covers="a pool of one slot")
    yield from _pools_of_codes(SMALL_128)


def _pools_of_codes(preset: str) -> Iterator[Line]:
    for regime, covers in OF_CODES.items():
        scalars = {"scalars": AS_THEY_ARE} if regime == "rounding_ties" else {}
        yield pool(regime, preset, regime, 9, in_place(regime, 4, 9), covers=covers, **scalars)


def quantised_pool_conformance() -> Iterator[Line]:
    for i, regime in enumerate(ONE_TOKEN_REGIMES):
        rows = (in_place, moved, shared)[i % 3](regime, 4, 11)
        yield pool(f"regime_{regime}", GROUPS_128, regime, 11, rows, covers=f"the regime {regime}")
    yield pool(
        "vanishing_states", SMALL, "vanishing_states", 8, in_place("vanishing", 3, 8),
        covers="rows of tiny numbers, which are not zeros",
    )  # fmt: skip
    yield pool("in_turn", SMALL, "in_turn", 30, in_place("in_turn", 14, 30), covers="rows of every size and gate")
    rows = in_place("many", 65, 150)
    yield pool("batch_65", SMALL, "typical", 150, rows, covers="more rows than a block of them, slots out of order")
    yield pool("full", SMALL, "typical", 24, in_place("full", 24, 24), covers="every slot of the pool in use")
    yield pool("all_skipped", SMALL, "typical", 4, [SKIPPED] * 3, covers="no row to do")
    skips = [row if i % 2 else SKIPPED for i, row in enumerate(shared("every_other", 8, 20))]
    yield pool("every_other_skipped", SMALL_128, "hard_reset", 20, skips, covers="skipped rows between others, resets")
    yield pool(
        "strided_moved", GROUPS, "typical", 11, moved("strided", 5, 11), gaps={"pool_scales": 64},
        covers="a gap between slots of scales alone, states written to others",
    )  # fmt: skip
    yield pool(
        "strided_wide", SMALL_128, "slow_decay", 5, in_place("wide", 4, 5), gaps=WIDE, covers="gaps as long as a slot",
    )  # fmt: skip
    yield pool("head_size_32", "heads-1x1x2-d32", "slow_decay", 9, moved("32", 4, 9), covers="head size 32")
    yield pool("head_size_120_gva", GVA_D120, "slow_decay", 9, moved("120", 4, 9), covers="head size 120, GVA")
    yield pool("head_size_256", "heads-1x1x1-d256", "typical", 5, moved("256", 2, 5), covers="head size 256")
    yield pool("groups_of_three", GROUPS_OF_3, "typical", 7, in_place("6", 3, 7), covers="three value heads a key head")
    yield pool("qwen3_next_heads", QWEN3_NEXT, "typical", 3, in_place("32", 2, 3), covers="16 and 32 heads")
    yield pool(
        "scale_zero_no_l2norm", SMALL, "typical", 5, in_place("scale", 3, 5),
        scalars={"scale": 0.0, "use_qk_l2norm": False}, covers="both switches at once",
    )  # fmt: skip
    yield pool(
        "ties_moved", GROUPS, "rounding_ties", 13, moved("ties", 6, 13), scalars=AS_THEY_ARE,
        covers="numbers just between two codes, head size 64",
    )  # fmt: skip


def quantised_pool_performance() -> Iterator[Line]:
    for batch, num_slots in ((1, 512), (16, 512), (64, 512), (256, 512)):
        rows = in_place(f"16x32 {batch}", batch, num_slots)
        yield pool(f"16x32_batch_{batch}", QWEN3_NEXT, "typical", num_slots, rows)


def quantised_verify_smoke() -> Iterator[Line]:
    yield verify("four_tokens", SMALL_128, "typical", 4, [0, 4, 2], covers="none, all and some accepted before")
    yield verify("one_token", SMALL_128, "typical", 1, [1, 0, 1], covers="one draft token: decode from a pool")
    yield verify("sixteen_tokens", SMALL, "typical", 16, [16], covers="the most draft tokens")
    yield verify("skips", SMALL_128, "typical", 3, [0, 0, 3, 1], skipped=(0, 2), covers="skipped rows among others")
    yield verify("resets", SMALL, "hard_reset", 4, [1, 0, 3], covers="alpha = 0 at some tokens")
    yield verify("strided", SMALL_128, "slow_decay", 2, [2, 1], gaps=SLICED, covers="a gap between slots of both pools")
    yield verify("zero_states", SMALL, "zero_states", 3, [0, 3, 1, 2], covers=OF_CODES["zero_states"])
    yield verify("codes_at_ends", SMALL, "codes_at_ends", 3, [0, 3, 1], covers=OF_CODES["codes_at_ends"])


def quantised_verify_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield verify(f"regime_{regime}", SMALL_128, regime, 3, [0, 1, 3], covers=f"the regime {regime}")
    for tokens in (2, 5, 8):
        accepted = [n % (tokens + 1) for n in range(4)]
        yield verify(f"tokens_{tokens}", SMALL, "typical", tokens, accepted, covers=f"{tokens} draft tokens")
    yield verify("every_count", SMALL, "typical", 7, list(range(8)), covers="every count of accepted tokens")
    yield verify("all_skipped", SMALL, "typical", 2, [0, 0], skipped=(0, 1), covers="no row to do")
    yield verify("many", SMALL, "typical", 2, [n % 3 for n in range(70)], covers="more rows than a block of them")
    yield verify(
        "vanishing_states", SMALL, "vanishing_states", 2, [0, 2, 1], covers="rows of tiny numbers, which are not zeros"
    )  # fmt: skip
    yield verify("head_size_32", "heads-1x1x2-d32", "slow_decay", 3, [2, 0], covers="head size 32")
    yield verify("head_size_120_gva", GVA_D120, "hard_reset", 3, [2, 0], covers="head size 120, GVA, resets")
    yield verify("head_size_256", "heads-1x1x1-d256", "typical", 2, [1, 0], covers="head size 256")
    yield verify("groups_of_three", GROUPS_OF_3, "typical", 2, [1, 0, 2], covers="three value heads a key head")
    yield verify("qwen3_next_heads", QWEN3_NEXT, "typical", 2, [2], covers="16 and 32 heads")
    yield verify(
        "scale_given_no_l2norm", SMALL, "typical", 3, [0, 2], scalars={"scale": 0.3, "use_qk_l2norm": False},
        covers="a scale of its own, keys as they are",
    )  # fmt: skip
    yield verify(
        "ties", SMALL_128, "rounding_ties", 1, [0, 1, 0], scalars=AS_THEY_ARE, covers=OF_CODES["rounding_ties"],
    )  # fmt: skip


def quantised_verify_performance() -> Iterator[Line]:
    for batch in (1, 16):
        accepted = [n % 5 for n in range(batch)]
        yield verify(f"16x32_4_tokens_batch_{batch}", QWEN3_NEXT, "typical", 4, accepted)


QUANTISED_POOL = {
    "smoke": quantised_pool_smoke, "conformance": quantised_pool_conformance, "performance": quantised_pool_performance,
}  # fmt: skip
QUANTISED_VERIFY = {
    "smoke": quantised_verify_smoke, "conformance": quantised_verify_conformance,
    "performance": quantised_verify_performance,
}  # fmt: skip
