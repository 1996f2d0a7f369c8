"""Rows of prefill over a padded batch with a mask."""

from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

from .heads import D120, GQA, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, MANY_HEADS, QWEN3_NEXT, SMALL, SMALL_128
from .line import REGIMES, Line

MASKS = "left", "right", "both", "holes"


def mask(side: str, seq_len: int, tokens: int) -> list[int]:
    """1 at so many of the positions of a row: the last, the first, those in the middle, or some anywhere."""
    if side == "holes":
        return [int((n + 1) * tokens // seq_len > n * tokens // seq_len) for n in range(seq_len)]
    before = {"left": seq_len - tokens, "right": 0, "both": (seq_len - tokens) // 2}[side]
    return [0] * before + [1] * tokens + [0] * (seq_len - tokens - before)


def padded(
    name: str,
    preset: str,
    regime: str,
    seq_len: int,
    lengths: tuple[int, ...],
    sides: str | tuple[str, ...],
    **more: Any,
) -> Line:
    """Rows of `lengths` tokens each, padded on these sides in turn."""
    turns = cycle((sides,) if isinstance(sides, str) else sides)
    rows = [mask(side, seq_len, length) for length, side in zip(lengths, turns, strict=False)]
    return {
        "name": name, "preset": preset, "regime": regime, "axes": {"batch_size": len(lengths), "seq_len": seq_len},
        "integers": {"attention_mask": list(chain.from_iterable(rows))}, **more,
    }  # fmt: skip


def padded_smoke() -> Iterator[Line]:
    yield padded("left", SMALL_128, "typical", 12, (5, 12, 9), "left", covers="padding before, as generation has it")
    yield padded("right", SMALL, "slow_decay", 12, (5, 12, 9), "right", covers="padding behind, as training has it")
    yield padded("ragged", GROUPS, "typical", 10, (4, 9, 7), MASKS[:3], covers="rows padded on different sides")
    yield padded("holes", SMALL, "typical", 20, (8, 13), "holes", covers="padding between tokens")
    yield padded("no_padding", SMALL, "typical", 9, (9, 9), "left", covers="a mask of ones")
    yield padded("no_token", SMALL, "typical", 6, (0, 4, 0), "left", covers="rows without a token, whose states stay")
    yield padded("one_position", SMALL, "typical", 1, (1, 0, 1), "left", covers="rows of one position")
    yield padded("resets", SMALL, "hard_reset", 90, (70,), "left", covers="alpha = 0 at tokens and in the padding")
    yield padded("gqa", GQA, "typical", 8, (5, 8), "right", covers="more query heads than key heads")
    yield padded(
        "only_required", SMALL, "typical", 9, (6, 3), "left", omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )  # fmt: skip


def padded_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield padded(f"regime_{regime}", GROUPS, regime, 70, (65, 3, 20, 64), MASKS, covers=f"the regime {regime}")
    for seq_len in (63, 64, 65, 127, 128, 130):
        lengths = (seq_len, seq_len - 1, 33, seq_len - 30)
        yield padded(f"positions_{seq_len}", SMALL, "typical", seq_len, lengths, MASKS, covers=f"{seq_len} positions")
    for side in MASKS:
        yield padded(
            f"chunks_{side}", SMALL_128, "typical", 200, (64, 130, 65), side, covers=f"chunks, padding: {side}"
        )
        yield padded(f"resets_{side}", GROUPS, "hard_reset", 150, (65, 100), side, covers=f"resets in padding: {side}")
        yield padded(
            f"keeps_state_{side}", SMALL, "large_initial_state", 80, (0, 1, 64), side,
            covers=f"large states that padding leaves alone: {side}",
        )  # fmt: skip
    yield padded("first_chunk_padding", SMALL, "typical", 192, (128, 64, 10), "left", covers="whole chunks of padding")
    yield padded("last_chunk_padding", SMALL, "typical", 192, (128, 64, 10), "right", covers="whole chunks of padding")
    yield padded("all_padding", SMALL, "typical", 70, (0, 0), "left", covers="no token in any row")
    yield padded("one_token_each", SMALL, "typical", 65, (1,) * 9, MASKS, covers="one token in each row")
    yield padded("one_row", SMALL_128, "typical", 100, (77,), "left", covers="batch 1")
    yield padded("batch_65", SMALL, "typical", 5, (3, 5, 1, 4, 0) * 13, MASKS, covers="more rows than a block of them")
    yield padded("same_key", SMALL, "repeated_keys", 140, (96, 120), ("left", "right"), covers="one key in a row")
    yield padded("long", SMALL, "slow_decay", 1000, (640, 999), ("left", "holes"), covers="many chunks")
    yield padded("head_size_120_mha", D120, "typical", 66, (40, 65), MASKS, covers="head size 120")
    yield padded("head_size_120_gva", GVA_D120, "hard_reset", 66, (65, 0, 7), MASKS, covers="head size 120, GVA")
    yield padded("groups_of_three", GROUPS_OF_3, "typical", 70, (66, 20), MASKS, covers="three value heads a key head")
    yield padded("heads_128", GROUPS_128, "typical", 66, (64, 33, 1), MASKS, covers="heads of 128")
    yield padded("qwen3_next_heads", QWEN3_NEXT, "typical", 40, (20, 33), MASKS, covers="16 and 32 heads")
    yield padded(
        "pairs_66048", MANY_HEADS, "slow_decay", 4, (2, 4, 1) * 43, MASKS, covers="66,048 pairs of a row and a head"
    )
    for name in ("g", "beta", "initial_state"):
        yield padded(f"no_{name}", SMALL, "typical", 66, (20, 65), MASKS, omit=[name], covers=f"{name} absent")
    for scale in (0.0, -1.5, 1.0, 1e-6, 1e6):
        yield padded(
            f"scale_{scale}", SMALL, "typical", 33, (20, 30), MASKS, scalars={"scale": scale}, covers="a scale"
        )


def padded_strict() -> Iterator[Line]:
    yield padded("strict_left", SMALL_128, "strict_keys", 160, (128,), "left", covers="two chunks of one key")
    yield padded(
        "strict_mixed", SMALL_128, "strict_keys", 140, (129, 65), ("right", "holes"), covers="one key, padding"
    )


def padded_performance() -> Iterator[Line]:
    yield padded("16x32_4x512_left", QWEN3_NEXT, "typical", 512, (512, 400, 300, 200), "left")


PADDED = {
    "smoke": padded_smoke, "conformance": padded_conformance, "strict": padded_strict,
    "performance": padded_performance,
}  # fmt: skip
