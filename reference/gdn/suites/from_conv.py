"""Rows of a prefill straight from the convolution."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, K64_V120, K120_V60, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .prefill import prefill
from .slots import somewhere


def from_conv(
    name: str, preset: str, regime: str, lengths: tuple[int, ...], skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """Sequences on slots anywhere."""
    line = prefill(name, preset, regime, lengths, **more)
    line["axes"]["num_slots"] = len(lengths) + 2
    slots = somewhere(f"from convolution {name}", len(lengths), len(lengths) + 2)
    return {**line, "integers": {"slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)]}}


def from_conv_smoke() -> Iterator[Line]:
    yield from_conv("ragged", GROUPS_128, "typical", (1, 65, 8), covers="sequences around one chunk")
    yield from_conv("empty", SMALL, "typical", (0, 64, 0, 20), covers="empty sequences, whose states stay")
    yield from_conv("resets", SMALL, "hard_reset", (130,), covers="alpha = 0 at tokens and at edges of chunks")
    yield from_conv("k64_v120", K64_V120, "slow_decay", (50,), covers="heads of values wider than those of keys")
    yield from_conv("k120_v60", K120_V60, "typical", (20, 65), covers="heads of keys wider, no powers of two")
    yield from_conv(
        "skips", SMALL, "typical", (9, 3, 30), skipped=(1,), gaps={"recurrent_state": 64},
        covers="a sequence without a slot; slots that stand apart",
    )  # fmt: skip
    yield from_conv("tiny_keys", SMALL_128, "tiny_keys", (40,), covers="the epsilon of the norm stands inside the root")


def from_conv_conformance(one_key: str = "same_key") -> Iterator[Line]:
    for regime in ("long_memory", "near_parallel_keys", "beta_zero", "beta_two", "one_large_state"):
        yield from_conv(f"regime_{regime}", GROUPS, regime, (65, 1, 64), covers=f"the regime {regime}")
    yield from_conv("regime_fast_decay", SMALL_128, "fast_decay", (20, 1, 9), covers="the regime fast_decay")
    yield from_conv(one_key, SMALL, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield from_conv("no_tokens", SMALL, "typical", (0, 0), covers="no token at all")
    yield from_conv("all_skipped", SMALL, "typical", (3, 2), skipped=(0, 1), covers="no sequence to do")
    yield from_conv("long", SMALL_128, "slow_decay", (640, 129), covers="many chunks")
    yield from_conv("groups_of_three", GROUPS_OF_3, "typical", (70,), covers="three value heads a key head")
    yield from_conv("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), covers="16 and 32 heads")


def from_conv_performance() -> Iterator[Line]:
    yield from_conv("16x32_1x2048", QWEN3_NEXT, "typical", (2048,))


FROM_CONV = {"smoke": from_conv_smoke, "conformance": from_conv_conformance, "performance": from_conv_performance}
# A seed comes from the name, and on that of same_key an emulator errs so much in float32 that freezing is refused.
FROM_CONV_F32 = FROM_CONV | {"conformance": partial(from_conv_conformance, "one_key")}
