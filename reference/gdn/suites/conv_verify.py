"""Rows of the convolution for verify: where a row's last step ended, and how many tokens it has now."""

from collections.abc import Iterator
from typing import Any

from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, MANY_HEADS, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .many import MANY
from .slots import somewhere


def conv_verify(
    name: str, preset: str, tokens: int, accepted: list[int], counts: list[int] | None = None,
    skipped: tuple[int, ...] = (), **more: Any,
) -> Line:  # fmt: skip
    """`accepted` of each row's last step, and `counts` of its tokens now, of at most `tokens`; all of them if left
    out. Slots anywhere."""
    batch = len(accepted)
    slots = somewhere(f"convolution verify {name}", batch, batch + 3)
    return {
        "name": name, "preset": preset, "regime": more.pop("regime", "typical"),
        "axes": {"batch_size": batch, "draft_tokens": tokens, "num_slots": batch + 3},
        "integers": {
            "slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)], "accepted": accepted,
            "drafts": counts or [tokens] * batch,
        }, **more,
    }  # fmt: skip


def conv_verify_smoke() -> Iterator[Line]:
    yield conv_verify("mixed", GROUPS, 4, [1, 4, 2, 3], [4, 4, 0, 1], covers="windows anywhere; all, no and one token")
    yield conv_verify("one_token", SMALL_128, 1, [1, 1], [1, 0], covers="one token, or none: as a decode")
    yield conv_verify("width_2", D120, 3, [1, 3, 2], [3, 2, 1], covers="a window of one input")
    yield conv_verify("width_3", GVA_D120, 3, [2, 1, 3], [2, 3, 1], omit=["bias"], covers="a window of two, no bias")
    yield conv_verify("skips", SMALL, 3, [3, 1, 2, 1], [3, 2, 3, 1], (0, 2), covers="skipped rows that have tokens")
    yield conv_verify("strided", SMALL, 5, [5, 2, 1], [2, 5, 4], gaps={"conv_states": 96}, covers="a gap between slots")


def conv_verify_conformance() -> Iterator[Line]:
    for tokens in (2, 5, 16):
        accepted = [tokens, 1, (tokens + 1) // 2, 1]
        yield conv_verify(f"tokens_{tokens}", SMALL, tokens, accepted, covers=f"{tokens} tokens in every row")
    yield conv_verify("every_accepted", SMALL, 7, [*range(1, 8)], covers="every count of accepted tokens")
    yield conv_verify("every_count", SMALL, 7, [4] * 8, [*range(8)], covers="every count of tokens")
    yield conv_verify(
        "every_both", SMALL, 3, [1, 2, 3] * 4, [n // 3 for n in range(12)], covers="each count with each other"
    )
    yield conv_verify("none", SMALL, 4, [1, 4, 2], [0, 0, 0], covers="no token in any row: nothing to do")
    yield conv_verify("all_skipped", SMALL, 2, [2, 1], skipped=(0, 1), covers="no row to do")
    yield conv_verify("one_row_of_many", SMALL, 4, [3] * 6, [0, 0, 0, 4, 0, 0], covers="one row with tokens")
    yield conv_verify("batch_65", SMALL, 2, [1 + n % 2 for n in range(65)], covers="more rows than a block of them")
    yield conv_verify(
        "large_states", GROUPS_OF_3, 3, [1, 3, 2], regime="large_initial_state", covers="states that outweigh x"
    )
    yield conv_verify("no_bias", GROUPS_128, 4, [2, 4], [3, 4], omit=["bias"], covers="the bias absent: zeros")
    yield conv_verify("widest", QWEN3_NEXT, 4, [1, 4, 3], [4, 2, 1], covers="8192 channels of a real model")
    yield conv_verify(
        "pairs_1056768",
        MANY_HEADS,
        1,
        [1] * MANY,
        covers="129 rows of 8,192 channels: past what one axis of a grid takes",
    )


def conv_verify_performance() -> Iterator[Line]:
    # As many tokens in every row: what a call must move follows from its axes.
    for batch in (1, 16, 64):
        accepted = [1 + n % 4 for n in range(batch)]
        yield conv_verify(f"16x32_4_tokens_batch_{batch}", QWEN3_NEXT, 4, accepted, omit=["bias"])


CONV_VERIFY = {
    "smoke": conv_verify_smoke, "conformance": conv_verify_conformance, "performance": conv_verify_performance,
}  # fmt: skip
