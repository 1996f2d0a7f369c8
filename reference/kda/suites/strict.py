"""Rows where only careful arithmetic survives: one key, values near one another, a write strength of almost two."""

from collections.abc import Iterator

from .rows import SMALL_128, Line, kept, prefill

KEYS = "strict_keys"


def prefill_strict() -> Iterator[Line]:
    yield prefill("strict_64", SMALL_128, KEYS, (64,), covers="one chunk")
    short = "16 tokens: what a small chunk gets right by care, not by luck"
    yield prefill("strict_short", SMALL_128, KEYS, (16,) * 6, covers=short)
    yield prefill("strict_ragged", SMALL_128, KEYS, (200, 65, 1), covers="several chunks and their edges")


def checkpoints_strict() -> Iterator[Line]:
    several = "states after one chunk and after two"
    yield kept("strict_states", SMALL_128, KEYS, 64, (64, 128, 64, 100, 128), covers=several)
