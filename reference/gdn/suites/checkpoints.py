"""Rows of prefill with checkpoints."""

from collections.abc import Iterator
from typing import Any

from .heads import (
    D120,
    GQA,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GVA_D120,
    QWEN3_NEXT,
    QWEN_397B,
    QWEN_397B_TP4,
    SMALL,
    SMALL_128,
)
from .line import RAGGED_16, REGIMES, Line
from .prefill import prefill


def kept(name: str, preset: str, regime: str, interval: int, lengths: tuple[int, ...], **more: Any) -> Line:
    """A prefill with the state after every `interval` tokens."""
    scalars = {"checkpoint_interval": interval, **more.pop("scalars", {})}
    line = prefill(name, preset, regime, lengths, scalars=scalars, **more)
    line["axes"] |= {"num_checkpoints": sum(length // interval for length in lengths)}
    return line


def checkpoints_smoke() -> Iterator[Line]:
    yield kept("ragged", SMALL_128, "typical", 64, (1, 65, 63, 130), covers="none, one and two checkpoints a sequence")
    yield kept(
        "edges", SMALL, "typical", 64, (63, 64, 65, 127, 128, 129),
        covers="lengths below, at and past one interval and two",
    )  # fmt: skip
    yield kept("empty_sequences", GROUPS, "typical", 64, (0, 64, 0, 70, 0), covers="no tokens first, between and last")
    yield kept("no_checkpoint", SMALL, "typical", 128, (100, 0, 127), covers="no sequence reaches an interval")
    yield kept("two_chunks", SMALL_128, "typical", 128, (260, 128), covers="an interval of several chunks")
    yield kept("resets", SMALL, "hard_reset", 64, (200,), covers="alpha = 0 at tokens and at checkpoints")
    yield kept("gqa", GQA, "typical", 64, (65, 80), covers="more query heads than key heads")
    yield kept(
        "only_required", SMALL, "typical", 64, (130, 64), omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )  # fmt: skip


def checkpoints_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield kept(f"regime_{regime}", GROUPS_128, regime, 64, (65, 1, 130, 64), covers=f"the regime {regime}")
    for length in (0, 1, 63, 64, 65, 127, 128, 129, 1000):
        yield kept(
            f"length_{length}", SMALL_128, "typical", 64, (length,), covers=f"a sequence of {length}, interval 64"
        )  # fmt: skip
    mixed = (127, 1, 0, 300, 63, 64, 65, 1000, 128, 129, 512, 0)
    for interval in (64, 128, 192, 256, 512):
        yield kept(
            f"interval_{interval}", SMALL, "typical", interval, mixed,
            covers=f"an interval of {interval}, lengths around every edge",
        )  # fmt: skip
    yield kept("interval_1024", SMALL, "typical", 1024, mixed, covers="an interval past every length")
    yield kept(
        "interval_320_resets", SMALL_128, "hard_reset", 320, (640, 319, 961),
        covers="an interval that chunks of 128 do not divide, resets",
    )  # fmt: skip
    yield kept("all_empty", SMALL, "typical", 64, (0, 0, 0), covers="empty sequences alone")
    yield kept("empty_first", SMALL_128, "typical", 64, (0, 64, 70), covers="an empty sequence first")
    yield kept("empty_last", SMALL_128, "typical", 64, (64, 130, 0), covers="an empty sequence last")
    yield kept(
        "empty_without_state", SMALL, "typical", 64, (0, 65, 0), omit=["initial_state"],
        covers="empty sequences that end in zeros",
    )  # fmt: skip
    yield kept("sequences_70", SMALL, "typical", 64, (3, 66) * 35, covers="more sequences than a block of them")
    yield kept("many", SMALL_128, "slow_decay", 64, (2048, 64), covers="32 checkpoints of one sequence")
    yield kept(
        "ragged_16", SMALL_128, "typical", 256, RAGGED_16, covers="a serving batch: 16 sequences of 1 to 3,000 tokens"
    )
    yield kept(
        "drift_long_memory", SMALL_128, "long_memory", 512, (16384,),
        covers="drift over 16,384 tokens that forget nothing",
    )  # fmt: skip
    yield kept("resets_long", GROUPS, "hard_reset", 128, (1000, 449), covers="resets over many chunks")
    yield kept("same_key_192", SMALL_128, "repeated_keys", 64, (192,), covers="one key over three intervals")
    yield kept(
        "replaced_state", SMALL_128, "replaced_large_state", 64, (600,), covers="a large state that keys replace"
    )
    yield kept(
        "one_large_state_many", SMALL, "one_large_state", 64, (64, 133, 65, 1, 100),
        covers="one large state among small ones, odd lengths",
    )  # fmt: skip
    yield kept(
        "faded", SMALL, "fast_decay", 64, (64, 128, 192), covers="states that owe nothing to those before, in sequence"
    )
    yield kept(
        "nothing_written", SMALL_128, "beta_zero", 64, (64, 200),
        covers="states that only decay: exact, but for a type that is too narrow",
    )  # fmt: skip
    yield kept("gqa_resets", GQA, "hard_reset", 64, (129, 0, 70), covers="GQA with resets and an empty sequence")
    yield kept("groups_of_three", GROUPS_OF_3, "typical", 64, (65, 130), covers="three value heads a key head")
    yield kept("head_size_120_mha", D120, "repeated_keys", 64, (129, 64), covers="head size 120, repeated keys")
    yield kept("head_size_120_gva", GVA_D120, "hard_reset", 64, (65, 127, 0), covers="head size 120, GVA, resets")
    yield kept("qwen3_next_heads", QWEN3_NEXT, "typical", 64, (130, 0, 1, 70), covers="16 and 32 heads, a ragged batch")
    yield kept("qwen3.5_397b_heads", QWEN_397B, "typical", 64, (65,), covers="16 and 64 heads")
    for name in ("g", "beta", "initial_state"):
        yield kept(f"no_{name}", SMALL_128, "typical", 64, (65, 128), omit=[name], covers=f"{name} absent")
    yield kept(
        "scale_zero", SMALL, "typical", 64, (70,), scalars={"scale": 0.0}, covers="scale 0.0: states as they would be"
    )
    yield kept(
        "scale_negative", SMALL, "typical", 64, (130,), scalars={"scale": -1.5}, covers="a negative scale, no state's"
    )


def checkpoints_strict() -> Iterator[Line]:
    yield kept("strict_128", SMALL_128, "strict_keys", 64, (128,), covers="two intervals of a chunk")
    yield kept("strict_ragged", SMALL_128, "strict_keys", 128, (300, 65, 129), covers="chunks and intervals apart")


def checkpoints_performance() -> Iterator[Line]:
    yield kept("4x16_1x8192_every_512", QWEN_397B_TP4, "typical", 512, (8192,))
    yield kept("16x32_4x2048_every_64", QWEN3_NEXT, "typical", 64, (2048,) * 4)
    yield kept("16x32_ragged_16_every_256", QWEN3_NEXT, "typical", 256, RAGGED_16)
    yield kept("16x64_1x2048_every_256", QWEN_397B, "typical", 256, (2048,))


CHECKPOINTS = {
    "smoke": checkpoints_smoke, "conformance": checkpoints_conformance, "strict": checkpoints_strict,
    "performance": checkpoints_performance,
}  # fmt: skip
