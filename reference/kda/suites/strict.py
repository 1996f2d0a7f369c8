"""Rows where only careful arithmetic survives: one key, values near one another, a write strength of almost two."""

from collections.abc import Iterator

from .rows import GROUPS, SMALL, SMALL_128, Line, kept, prefill

KEYS = "strict_keys"


def prefill_strict() -> Iterator[Line]:
    yield prefill("strict_64", SMALL_128, KEYS, (64,), covers="one chunk")
    short = "16 tokens: what a small chunk gets right by care, not by luck"
    yield prefill("strict_short", SMALL_128, KEYS, (16,) * 6, covers=short)
    yield prefill("strict_ragged", SMALL_128, KEYS, (200, 65, 1), covers="several chunks and their edges")


def checkpoints_strict() -> Iterator[Line]:
    several = "states after one chunk and after two"
    yield kept("strict_states", SMALL_128, KEYS, 64, (64, 128, 64, 100, 128), covers=several)


def backward_strict() -> Iterator[Line]:
    """With keys alike, gradients of tokens nearly cancel in dk and dbeta."""
    yield prefill("strict_repeated", SMALL, "repeated_keys", (64, 30), covers="one key, beta up to 1.95")
    yield prefill("strict_groups", GROUPS, "repeated_keys", (70,), covers="the same, two value heads to a key head")
    yield prefill("strict_128", SMALL_128, KEYS, (65,), covers="a chunk and one token, beta of almost two")
    yield prefill("strict_short", SMALL, KEYS, (16,) * 4, covers="16 tokens, beta of almost two")
    yield prefill(
        "strict_channels", SMALL_128, "mixed_channels", (40, 9), covers="channels that decay unlike one another"
    )
