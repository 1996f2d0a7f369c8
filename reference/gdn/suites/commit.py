"""Rows of a commit: how many tokens of each row count, after a verify that has set its states aside."""

from collections.abc import Iterator
from typing import Any

from .heads import GROUPS, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .slots import somewhere


def commit(
    name: str, preset: str, regime: str, tokens: int, accepted: list[int], skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`accepted` of each row, of at most `tokens`. A row has a slot of its own in both pools, another one in each."""
    batch = len(accepted)
    slots, steps = (somewhere(f"commit {name} {pool}", batch, batch + 2) for pool in ("pool", "steps"))
    return {
        "name": name, "preset": preset, "regime": regime,
        "axes": {"batch_size": batch, "draft_tokens": tokens, "num_slots": batch + 2},
        "integers": {
            "slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)],
            "step_slots": [-1 if n in skipped else slot for n, slot in enumerate(steps)],
            "accepted": accepted,
        }, **more,
    }  # fmt: skip


def commit_smoke() -> Iterator[Line]:
    yield commit("mixed", GROUPS, "typical", 4, [4, 0, 2], covers="all, none and some of the tokens")
    yield commit("one_token", SMALL_128, "typical", 1, [1, 0, 1], covers="one draft token, or none")
    yield commit("none_first", SMALL, "large_initial_state", 3, [0, 3, 1], covers="a row that keeps its state first")
    yield commit("skips", SMALL, "typical", 3, [3, 1, 2, 0], skipped=(0, 3), covers="skipped rows that have counts")
    gaps = {"pool": 128, "step_states": 192}
    yield commit("strided", SMALL, "typical", 2, [2, 1, 0], gaps=gaps, covers="a gap between slots of both pools")


def commit_conformance() -> Iterator[Line]:
    for regime in ("typical", "large_initial_state", "one_large_state", "decayed_large_state"):
        yield commit(f"regime_{regime}", GROUPS, regime, 3, [3, 0, 1, 2], covers=f"states of the regime {regime}")
    for tokens in (2, 5, 16):
        counts = [tokens, 0, (tokens + 1) // 2, tokens - 1]
        yield commit(f"tokens_{tokens}", SMALL, "typical", tokens, counts, covers=f"at most {tokens} draft tokens")
    yield commit("every_count", SMALL, "typical", 7, list(range(8)), covers="every count of accepted tokens, in order")
    yield commit("none_accepted", SMALL, "typical", 4, [0] * 5, covers="no token counts in any row")
    yield commit("all_accepted", GROUPS, "typical", 4, [4] * 5, covers="all tokens count in every row")
    yield commit("all_skipped", SMALL, "typical", 2, [2, 1], skipped=(0, 1), covers="no row to do")
    yield commit("head_size_120", GVA_D120, "typical", 3, [2, 0, 3], covers="head size 120")
    yield commit("qwen3_next_heads", QWEN3_NEXT, "typical", 2, [2, 1, 0], covers="32 heads")


def commit_performance() -> Iterator[Line]:
    for batch in (1, 16):  # every row has tokens that count: what a call must move follows from its axes
        counts = [1 + n % 4 for n in range(batch)]
        yield commit(f"32_heads_4_tokens_batch_{batch}", QWEN3_NEXT, "typical", 4, counts)


COMMIT = {"smoke": commit_smoke, "conformance": commit_conformance, "performance": commit_performance}
