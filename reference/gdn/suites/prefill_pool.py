"""Rows of prefill on a pool of states."""

from collections.abc import Iterator
from typing import Any

from .heads import D120, GQA, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import REGIMES, Line, Rows
from .prefill import prefill
from .slots import somewhere


def prefill_pool(
    name: str, preset: str, regime: str, lengths: tuple[int, ...], flags: str = "+", skipped: tuple[int, ...] = (),
    behind: int = 0, **more: Any,
) -> Line:  # fmt: skip
    """Sequences on slots anywhere; `flags`, in turn: + goes on from its slot, - starts from zeros. `behind`: rows of no
    sequence, at the end."""
    line = prefill(name, preset, regime, lengths, **more)
    line["axes"] |= {"num_slots": len(lengths) + 2, "total_seq_len": sum(lengths) + behind}
    slots = somewhere(f"prefill pool {name}", len(lengths), len(lengths) + 2)
    return {
        **line,
        "integers": {
            "slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)],
            "has_initial_state": [int(flags[n % len(flags)] == "+") for n in range(len(lengths))],
        },
    }  # fmt: skip


def prefill_pool_smoke() -> Iterator[Line]:
    """About 200 tokens times heads: a recurrence that is interpreted goes through every one of them."""
    yield prefill_pool("ragged", SMALL_128, "typical", (1, 5, 9), "+-", covers="sequences that go on, and a new one")
    yield prefill_pool("behind", SMALL, "typical", (4, 6), behind=3, covers="rows behind the last sequence")
    yield prefill_pool("skips", SMALL, "slow_decay", (3, 2, 5), skipped=(1,), covers="a sequence without a slot")
    yield prefill_pool("empty", GROUPS, "typical", (0, 4, 0, 3, 0), "-+", covers="empty sequences, whose slots stay")
    yield prefill_pool("resets", SMALL, "hard_reset", (20,), covers="alpha = 0 at tokens")
    yield prefill_pool("gqa", GQA, "typical", (5, 4), "+-", covers="more query heads than key heads")
    yield prefill_pool("only_required", SMALL, "typical", (6,), omit=["g", "beta"], covers="what is optional left out")
    yield prefill_pool("strided", SMALL, "typical", (2, 5), gaps={"pool": 128}, covers="a gap between slots")


def prefill_pool_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield prefill_pool(f"regime_{regime}", GROUPS, regime, (65, 1, 20, 64), covers=f"the regime {regime}")
    yield prefill_pool("chunks", SMALL_128, "typical", (1, 63, 65, 130), "+-", covers="sequences around chunks")
    yield prefill_pool("resets_long", SMALL, "hard_reset", (130,), covers="alpha = 0 at tokens and at edges of chunks")
    for length in (1, 64, 69, 128, 200):
        yield prefill_pool(f"length_{length}", SMALL_128, "typical", (length,), covers=f"one sequence of {length}")
    yield prefill_pool("all_new", SMALL, "typical", (5, 70, 64), "-", covers="every sequence from zeros")
    yield prefill_pool(
        "all_new_large", SMALL, "large_initial_state", (5, 66, 3), "-", covers="slots that hold large states of others"
    )
    yield prefill_pool(
        "empty_new", SMALL, "typical", (0, 65, 0), "-", covers="empty sequences that do not clear a slot"
    )
    yield prefill_pool("all_empty", SMALL, "typical", (0, 0), covers="no token at all")
    yield prefill_pool("all_skipped", SMALL, "typical", (3, 2), skipped=(0, 1), covers="no sequence to do")
    yield prefill_pool(
        "skipped_first_and_last", SMALL, "typical", (64, 5, 66, 70), "+-", skipped=(0, 3), behind=5,
        covers="sequences without a slot at both ends, and rows behind the last",
    )  # fmt: skip
    yield prefill_pool(
        "behind_one", SMALL_128, "typical", (64, 63), behind=1, covers="one row behind the last sequence"
    )
    yield prefill_pool("behind_a_chunk", SMALL, "slow_decay", (65,), behind=63, covers="a chunk that rows behind fill")
    yield prefill_pool("behind_more", SMALL, "typical", (3, 1), behind=124, covers="more rows behind than tokens")
    yield prefill_pool(
        "behind_empty", SMALL, "typical", (5, 0), behind=3, covers="an empty sequence before rows behind"
    )
    yield prefill_pool("behind_alone", SMALL, "typical", (0,), behind=8, covers="rows of no sequence alone")
    yield prefill_pool(
        "behind_resets", SMALL, "hard_reset", (30, 70), "-+", behind=28, covers="resets beside rows behind"
    )
    yield prefill_pool(
        "sequences_70", SMALL, "typical", (1, 3) * 35, "++-", covers="more sequences than a block of them"
    )
    yield prefill_pool("same_key", SMALL, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield prefill_pool("long", SMALL, "slow_decay", (640, 129), covers="many chunks")
    yield prefill_pool("head_size_120_mha", D120, "typical", (40, 65), "-+", covers="head size 120")
    yield prefill_pool("head_size_120_gva", GVA_D120, "hard_reset", (65, 0, 7), covers="head size 120, GVA, resets")
    yield prefill_pool("groups_of_three", GROUPS_OF_3, "typical", (70,), covers="three value heads a key head")
    yield prefill_pool("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), "+-", covers="16 and 32 heads")
    yield prefill_pool("heads_128", GROUPS_128, "typical", (65, 64, 1), "+-+", behind=2, covers="heads of 128")
    for name in ("g", "beta"):
        yield prefill_pool(f"no_{name}", SMALL, "typical", (20, 65), omit=[name], covers=f"{name} absent")
    yield prefill_pool("scale_zero", SMALL, "typical", (33,), scalars={"scale": 0.0}, covers="scale 0.0")


def prefill_pool_strict() -> Iterator[Line]:
    yield prefill_pool("strict_128", SMALL_128, "strict_keys", (128,), covers="two chunks of one key")
    yield prefill_pool("strict_ragged", SMALL_128, "strict_keys", (129, 65), "+", behind=3, covers="one key, ragged")


def prefill_pool_performance() -> Iterator[Line]:
    yield prefill_pool("16x32_1x2048", QWEN3_NEXT, "typical", (2048,))


# Rows that say something of a slot 0 that stands for none: the arithmetic is the same.
OF_SLOT_ZERO = {
    "ragged", "behind", "skips", "empty", "only_required", "strided", "regime_typical", "regime_hard_reset", "chunks",
    "all_new_large", "empty_new", "all_skipped", "skipped_first_and_last", "behind_empty", "sequences_70", "heads_128",
    "qwen3_next_heads", "padded_batch", "past_2_31_states",
}  # fmt: skip


def of_slot_zero(rows: Rows) -> Rows:
    """Those of them that are shown again, every slot one further, so that 0 skips a sequence."""

    def moved() -> Iterator[Line]:
        for line in rows():
            if line["name"] in OF_SLOT_ZERO:
                integers = {**line["integers"], "slots": [slot + 1 for slot in line["integers"]["slots"]]}
                axes = {**line["axes"], "num_slots": line["axes"]["num_slots"] + 1}
                yield {**line, "axes": axes, "integers": integers}

    return moved


def prefill_slot_zero_performance() -> Iterator[Line]:
    """Small: the arithmetic is that of gdn_prefill_pool_k_last."""
    line = prefill_pool("16x32_2x64", QWEN3_NEXT, "typical", (64, 64))
    yield {**line, "integers": line["integers"] | {"slots": [3, 1]}}


def prefill_slot_zero_strict() -> Iterator[Line]:
    line = prefill_pool("strict_zero", SMALL_128, "strict_keys", (128,), covers="two chunks of one key")
    yield {**line, "axes": line["axes"] | {"num_slots": 4}, "integers": line["integers"] | {"slots": [3]}}


PREFILL_POOL = {
    "smoke": prefill_pool_smoke, "conformance": prefill_pool_conformance, "strict": prefill_pool_strict,
    "performance": prefill_pool_performance,
}  # fmt: skip
PREFILL_SLOT_ZERO = {
    "smoke": of_slot_zero(prefill_pool_smoke), "conformance": of_slot_zero(prefill_pool_conformance),
    "strict": prefill_slot_zero_strict, "performance": prefill_slot_zero_performance,
}  # fmt: skip
