"""Rows of verify with a number of draft tokens for each row."""

from collections.abc import Iterator
from typing import Any

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line
from .slots import somewhere


def drafts(
    name: str, preset: str, regime: str, tokens: int, counts: list[int], skipped: tuple[int, ...] = (),
    shared: bool = False, **more: Any,
) -> Line:  # fmt: skip
    """`counts` of each row, of at most `tokens`. A row has a slot of its own in both pools, another one in each; where
    they are `shared` all rows start from one."""
    batch = len(counts)
    slots, steps = (somewhere(f"drafts {name} {pool}", batch, batch + 2) for pool in ("pool", "steps"))
    start = [slots[0]] * batch if shared else slots
    return {
        "name": name, "preset": preset, "regime": regime,
        "axes": {"batch_size": batch, "draft_tokens": tokens, "num_slots": batch + 2},
        "integers": {
            "slots": [-1 if n in skipped else slot for n, slot in enumerate(start)],
            "step_slots": [-1 if n in skipped else slot for n, slot in enumerate(steps)],
            "drafts": counts,
        }, **more,
    }  # fmt: skip


def drafts_smoke() -> Iterator[Line]:
    yield drafts("mixed", GROUPS_128, "typical", 4, [4, 0, 2], covers="all, none and some of the tokens")
    yield drafts("one_token", SMALL_128, "typical", 1, [1, 0, 1], covers="one draft token, or none")
    yield drafts("none_first", SMALL, "slow_decay", 3, [0, 3, 1], covers="a row without drafts before all others")
    yield drafts("skips", SMALL_128, "typical", 3, [3, 1, 2, 3], skipped=(0, 2), covers="skipped rows that have counts")
    yield drafts("shared", SMALL, "typical", 3, [1, 3, 2], shared=True, covers="rows that start from one slot")
    yield drafts("resets", SMALL, "hard_reset", 4, [2, 4, 3], covers="alpha = 0 at some tokens")
    gaps = {"pool": 128, "step_states": 192}
    yield drafts("strided", SMALL_128, "slow_decay", 2, [2, 1], gaps=gaps, covers="a gap between slots of both pools")


def drafts_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield drafts(f"regime_{regime}", GROUPS, regime, 3, [3, 0, 1, 2], covers=f"the regime {regime}")
    for tokens in (2, 5, 16):
        counts = [tokens, 0, (tokens + 1) // 2, tokens - 1]
        yield drafts(f"tokens_{tokens}", SMALL, "typical", tokens, counts, covers=f"at most {tokens} draft tokens")
    yield drafts("every_count", SMALL, "typical", 7, list(range(8)), covers="every count of drafts, in order")
    yield drafts("counts_fall", SMALL, "slow_decay", 4, [4, 3, 2, 1, 0], covers="fewer drafts from row to row")
    yield drafts("none", SMALL, "typical", 4, [0, 0, 0], covers="no draft in any row: nothing to do")
    yield drafts("all", GROUPS, "slow_decay", 4, [4] * 3, covers="as many drafts in every row")
    yield drafts("all_skipped", SMALL, "typical", 2, [2, 1], skipped=(0, 1), covers="no row to do")
    yield drafts("one_row_of_many", SMALL, "typical", 6, [0, 0, 0, 5, 0, 0], covers="one row with drafts among others")
    yield drafts("shared_prefix", GROUPS, "typical", 2, [2, 0, 1, 2], shared=True, covers="one prompt, several drafts")
    yield drafts("head_size_120_gva", GVA_D120, "hard_reset", 3, [2, 0, 3], covers="head size 120, GVA, resets")
    yield drafts("groups_of_three", GROUPS_OF_3, "typical", 2, [1, 0, 2], covers="three value heads a key head")
    yield drafts("qwen3_next_heads", QWEN3_NEXT, "typical", 2, [2, 1], covers="16 and 32 heads")
    yield drafts(
        "scale_given_no_l2norm", SMALL, "typical", 3, [3, 2], scalars={"scale": 0.3, "use_qk_l2norm": False},
        covers="a scale of its own, keys as they are",
    )  # fmt: skip


def drafts_performance() -> Iterator[Line]:
    # As many drafts in every row: what a call must move follows from its axes.
    for batch in (1, 16):
        yield drafts(f"16x32_4_tokens_batch_{batch}", QWEN3_NEXT, "typical", 4, [4] * batch)


DRAFTS = {"smoke": drafts_smoke, "conformance": drafts_conformance, "performance": drafts_performance}
