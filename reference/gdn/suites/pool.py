"""Rows of decode from a pool of states."""

from collections.abc import Iterator
from typing import Any

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line
from .slots import SKIPPED, Row, in_place, moved, shared


def pool(name: str, preset: str, regime: str, num_slots: int, rows: list[Row], **more: Any) -> Line:
    return {
        "name": name, "preset": preset, "axes": {"batch_size": len(rows), "num_slots": num_slots}, "regime": regime,
        "integers": {"read_slots": [r for r, _ in rows], "write_slots": [w for _, w in rows]}, **more,
    }  # fmt: skip


def pool_smoke() -> Iterator[Line]:
    yield pool("in_place", GROUPS_128, "typical", 12, in_place("in_place", 6, 12), covers="every state where it was")
    yield pool("moved", SMALL_128, "typical", 20, moved("moved", 7, 20), covers="states written to other slots")
    yield pool("shared", SMALL, "typical", 9, shared("shared", 5, 9), covers="one slot read by all rows")
    one, two, three = in_place("skips", 3, 8)
    skips = [SKIPPED, one, two, SKIPPED, three, SKIPPED]
    yield pool("skips", SMALL_128, "typical", 8, skips, covers="rows skipped first, between and last")
    rows = in_place("strided", 4, 7)
    yield pool("strided", SMALL_128, "typical", 7, rows, gaps={"pool": 192}, covers="a gap between slots")
    yield pool("resets", SMALL_128, "hard_reset", 9, in_place("resets", 8, 9), covers="alpha = 0 in some heads")
    yield pool("one_slot", SMALL, "slow_decay", 1, [(0, 0)], covers="a pool of one slot")


def pool_conformance() -> Iterator[Line]:
    for i, regime in enumerate(ONE_TOKEN_REGIMES):
        rows = (in_place, moved, shared)[i % 3](regime, 7, 17)
        yield pool(f"regime_{regime}", GROUPS_128, regime, 17, rows, covers=f"the regime {regime}")
    rows = in_place("many", 65, 300)
    yield pool("batch_65", SMALL, "typical", 300, rows, covers="more rows than a block of them, slots out of order")
    yield pool("full", SMALL_128, "typical", 24, in_place("full", 24, 24), covers="every slot of the pool in use")
    yield pool(
        "backwards", SMALL, "typical", 16, [(i, i) for i in range(15, -1, -1)], covers="slots from last to first"
    )
    halves = [(0, 4), (1, 5), (2, 6), (3, 7)]
    yield pool("halves", GROUPS, "typical", 8, halves, covers="the first half read, the second written")
    yield pool("all_skipped", SMALL, "typical", 4, [SKIPPED] * 3, covers="no row to do")
    skips = [row if i % 2 else SKIPPED for i, row in enumerate(shared("every_other", 12, 30))]
    yield pool("every_other_skipped", SMALL_128, "hard_reset", 30, skips, covers="skipped rows between others, resets")
    yield pool(
        "strided_moved", GROUPS, "typical", 11, moved("strided", 5, 11), gaps={"pool": 64},
        covers="a gap between slots, states written to others",
    )  # fmt: skip
    yield pool(
        "strided_wide", SMALL_128, "slow_decay", 5, in_place("wide", 4, 5), gaps={"pool": 1 << 15},
        covers="a gap as long as a slot",
    )  # fmt: skip
    yield pool("head_size_64", GROUPS, "hard_reset", 9, in_place("64", 5, 9), covers="head size 64 with resets")
    yield pool("head_size_120_gva", GVA_D120, "slow_decay", 9, moved("120", 4, 9), covers="head size 120, GVA")
    yield pool("groups_of_three", GROUPS_OF_3, "typical", 7, in_place("6", 5, 7), covers="three value heads a key head")
    yield pool("qwen3_next_heads", QWEN3_NEXT, "typical", 6, in_place("32", 4, 6), covers="16 and 32 heads")
    yield pool(
        "scale_zero_no_l2norm", SMALL, "typical", 5, in_place("scale", 3, 5),
        scalars={"scale": 0.0, "use_qk_l2norm": False}, covers="both switches at once",
    )  # fmt: skip
    far = [(slot, slot) for slot in (4199, 0, 4100, 4095, 4096, 2048)]
    yield pool(
        "past_2_31", QWEN3_NEXT, "typical", 4200, far, device="cuda", covers="a pool of more than 2^31 elements",
    )  # fmt: skip


def pool_performance() -> Iterator[Line]:
    # Thousands of slots, gigabytes to draw, where nothing else shows that they cost nothing.
    for batch, num_slots in ((1, 512), (16, 512), (64, 4096), (256, 512)):
        rows = in_place(f"16x32 {batch}", batch, num_slots)
        yield pool(f"16x32_batch_{batch}", QWEN3_NEXT, "typical", num_slots, rows)


POOL = {"smoke": pool_smoke, "conformance": pool_conformance, "performance": pool_performance}
