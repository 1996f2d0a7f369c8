"""Rows of two head sizes and write gates up to 2: decode from a pool, and verify."""

from collections.abc import Iterator

from .heads import (
    GROUPS_128,
    GVA_K96_V192,
    K24_V40,
    K40_V256,
    K64_V128,
    K96_V192,
    K128_V64,
    K256_V48,
    OLMO,
    OLMO_TP2,
    SMALL_128,
)
from .kv_dims import IN_TURN, NEGATIVE, SWITCHED, switch, turn
from .line import REGIMES, Line
from .pool import pool
from .slots import SKIPPED, in_place, moved, shared
from .verify import verify


def kv_pool_smoke() -> Iterator[Line]:
    rows = in_place("in_place", 6, 9)
    yield pool("in_place", K96_V192, "typical", 9, rows, scalars=NEGATIVE, covers="every state where it was")
    yield pool("moved", K64_V128, "typical", 14, moved("moved", 6, 14), covers="states written to other slots")
    rows = shared("shared", 5, 9)
    yield pool("shared", K24_V40, "typical", 9, rows, scalars=NEGATIVE, covers="one slot read by all rows")
    one, two, three = in_place("skips", 3, 8)
    skips = [SKIPPED, one, two, SKIPPED, three, SKIPPED]
    yield pool("skips", K128_V64, "typical", 8, skips, covers="rows skipped first, between and last")
    yield pool(
        "strided", GVA_K96_V192, "typical", 7, in_place("strided", 4, 7), gaps={"pool": 192}, scalars=NEGATIVE,
        covers="a gap between slots",
    )  # fmt: skip
    yield pool("beta_two", K96_V192, "beta_two", 5, in_place("two", 4, 5), scalars=NEGATIVE, covers="beta = 2")
    yield pool("one_slot", K128_V64, "slow_decay", 1, [(0, 0)], covers="a pool of one slot")


def kv_pool_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        rows = (in_place, moved, shared)[turn(regime)](regime, 5, 12)
        yield pool(
            f"regime_{regime}", IN_TURN[turn(regime) - 1], regime, 12, rows, scalars=switch(regime),
            covers=f"the regime {regime}",
        )  # fmt: skip
    rows = in_place("many", 65, 200)
    yield pool("batch_65", K24_V40, "typical", 200, rows, covers="more rows than a block of them, slots out of order")
    rows = in_place("full", 12, 12)
    yield pool("full", K64_V128, "typical", 12, rows, scalars=NEGATIVE, covers="every slot of the pool in use")
    halves = [(0, 4), (1, 5), (2, 6), (3, 7)]
    yield pool("halves", K128_V64, "typical", 8, halves, scalars=NEGATIVE, covers="first half read, second written")
    yield pool("all_skipped", K96_V192, "typical", 4, [SKIPPED] * 3, scalars=NEGATIVE, covers="no row to do")
    skips = [row if i % 2 else SKIPPED for i, row in enumerate(shared("every_other", 8, 20))]
    yield pool("every_other_skipped", K96_V192, "hard_reset", 20, skips, covers="skipped rows between others, resets")
    yield pool(
        "strided_wide", K128_V64, "slow_decay", 5, moved("wide", 2, 5), gaps={"pool": 1 << 15}, scalars=NEGATIVE,
        covers="a gap as long as a slot, states written to others",
    )  # fmt: skip
    rows = in_place("same", 3, 5)
    yield pool("same_size", GROUPS_128, "typical", 5, rows, scalars=NEGATIVE, covers="keys and values of one size")
    yield pool("same_size_gva", SMALL_128, "typical", 5, rows, covers="one size of 128, the switch absent")
    yield pool("widest_keys", K256_V48, "typical", 4, moved("k", 2, 4), covers="keys of 256")
    yield pool("widest_values", K40_V256, "typical", 4, moved("v", 2, 4), scalars=NEGATIVE, covers="values of 256")
    rows = in_place("30", 2, 3)
    yield pool("olmo_hybrid_heads", OLMO, "typical", 3, rows, scalars=NEGATIVE, covers="30 heads of a real model")
    for i, (name, scale) in enumerate((("zero", 0.0), ("negative", -1.5), ("one", 1.0), ("some", 0.3))):
        yield pool(
            f"scale_{name}", (K24_V40, K64_V128)[i % 2], "typical", 5, in_place(name, 3, 5),
            scalars={"scale": scale, **SWITCHED[i % 3]}, covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield pool(
        "no_l2norm", K128_V64, "beta_two", 5, in_place("norm", 3, 5), scalars={"use_qk_l2norm": False, **NEGATIVE},
        covers="keys as they are under a write strength of 2",
    )  # fmt: skip


def kv_pool_performance() -> Iterator[Line]:
    for batch in (1, 16, 64):
        rows = in_place(f"30x30 {batch}", batch, 128)
        yield pool(f"30x30_batch_{batch}", OLMO, "typical", 128, rows, scalars=NEGATIVE)
    rows = in_place("15x15 64", 64, 128)
    yield pool("15x15_batch_64", OLMO_TP2, "typical", 128, rows, scalars=NEGATIVE)


def kv_verify_smoke() -> Iterator[Line]:
    yield verify(
        "four_tokens", K96_V192, "typical", 4, [0, 4, 2], scalars=NEGATIVE, covers="none, all and some accepted before"
    )
    yield verify("one_token", K128_V64, "typical", 1, [1, 0, 1], covers="one draft token: decode from a pool")
    yield verify("sixteen_tokens", K64_V128, "typical", 16, [16], scalars=NEGATIVE, covers="the most draft tokens")
    yield verify("skips", K24_V40, "typical", 3, [0, 0, 3, 1], skipped=(0, 2), covers="skipped rows among others")
    yield verify("same_key", K96_V192, "repeated_keys", 4, [1, 0], scalars=NEGATIVE, covers="one key, beta past 1")
    yield verify(
        "strided", GVA_K96_V192, "slow_decay", 2, [2, 1], gaps={"pool": 128}, scalars=NEGATIVE,
        covers="a gap between slots",
    )  # fmt: skip


def kv_verify_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield verify(
            f"regime_{regime}", IN_TURN[turn(regime)], regime, 3, [0, 1, 3], scalars=switch(regime),
            covers=f"the regime {regime}",
        )  # fmt: skip
    for i, tokens in enumerate((1, 2, 5, 8, 16)):
        accepted = [n % (tokens + 1) for n in range(3)]
        yield verify(
            f"tokens_{tokens}", K24_V40, "typical", tokens, accepted, scalars=SWITCHED[i % 3],
            covers=f"{tokens} draft tokens",
        )  # fmt: skip
    yield verify(
        "every_count", K64_V128, "typical", 5, list(range(6)), scalars=NEGATIVE, covers="every count of accepted tokens"
    )
    yield verify("none_accepted", K128_V64, "typical", 4, [0] * 4, covers="no token accepted in any row")
    yield verify(
        "all_accepted", K128_V64, "slow_decay", 4, [4] * 4, scalars=NEGATIVE, covers="all of them in every row"
    )
    yield verify("rows_33", K24_V40, "typical", 2, [n % 3 for n in range(33)], covers="more rows than a block of them")
    yield verify("all_skipped", K96_V192, "typical", 2, [0, 0], skipped=(0, 1), scalars=NEGATIVE, covers="no row to do")
    yield verify("same_size", GROUPS_128, "beta_two", 2, [1, 0], scalars=NEGATIVE, covers="keys and values of one size")
    yield verify("same_size_gva", SMALL_128, "typical", 2, [1, 0], covers="one size of 128, the switch absent")
    yield verify("widest_keys", K256_V48, "typical", 2, [1, 0], scalars=NEGATIVE, covers="keys of 256")
    yield verify("widest_values", K40_V256, "typical", 2, [2], covers="values of 256")
    yield verify("olmo_hybrid_heads", OLMO, "typical", 2, [1], scalars=NEGATIVE, covers="30 heads of a real model")
    for i, (name, scale) in enumerate((("zero", 0.0), ("negative", -1.5), ("one", 1.0), ("some", 0.3))):
        yield verify(
            f"scale_{name}", (K64_V128, K24_V40)[i % 2], "typical", 2, [0, 2],
            scalars={"scale": scale, **SWITCHED[i % 3]}, covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield verify(
        "no_l2norm", K96_V192, "near_parallel_keys", 4, [0, 2], scalars={"use_qk_l2norm": False, **NEGATIVE},
        covers="keys as they are, nearly alike, under write strengths past 1",
    )  # fmt: skip


def kv_verify_performance() -> Iterator[Line]:
    for label, preset, batch in (("30x30", OLMO, 1), ("30x30", OLMO, 16), ("15x15", OLMO_TP2, 64)):
        accepted = [n % 5 for n in range(batch)]
        yield verify(f"{label}_4_tokens_batch_{batch}", preset, "typical", 4, accepted, scalars=NEGATIVE)


KV_POOL = {
    "smoke": kv_pool_smoke, "conformance": kv_pool_conformance, "performance": kv_pool_performance,
}  # fmt: skip
KV_VERIFY = {
    "smoke": kv_verify_smoke, "conformance": kv_verify_conformance, "performance": kv_verify_performance,
}  # fmt: skip
