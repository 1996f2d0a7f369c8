"""Rows of many short sequences, which engines send most; heads of 128, for kernels that serve that size alone."""

import random
from collections.abc import Callable, Iterator

from .checkpoints import kept
from .heads import GROUPS_OF_3, GROUPS_OF_4, SMALL_128
from .line import Line

PAST_A_CHUNK = 70  # tokens: most sequences have one chunk, a few have two


def drawn(name: str, count: int, least: int, most: int) -> tuple[int, ...]:
    """Lengths that follow from the row's name alone."""
    draw = random.Random(f"short {name}")
    return tuple(draw.randint(least, most) for _ in range(count))


def short_prefill(line: Callable[..., Line]) -> Iterator[Line]:
    yield line(
        "short_300", SMALL_128, "typical", drawn("short_300", 300, 0, PAST_A_CHUNK),
        covers="300 sequences of 0 to 70 tokens",
    )  # fmt: skip
    yield line(
        "short_one_token", SMALL_128, "typical", (1,) * 520,
        covers="520 sequences of one token: past 512, up to which a kernel may sort them",
    )  # fmt: skip
    yield line(
        "short_one_chunk", GROUPS_OF_4, "hard_reset", (64,) * 67,
        covers="67 sequences of exactly one chunk, 268 pairs with a head: a few more than two waves of 132",
    )  # fmt: skip
    short = drawn("short_beside_long", 200, 1, 40)
    yield line(
        "short_beside_long", GROUPS_OF_3, "slow_decay", (*short[:100], 1000, *short[100:]),
        covers="one sequence of 1,000 tokens among 200 of 1 to 40",
    )  # fmt: skip


def short_checkpoints() -> Iterator[Line]:
    def line(name: str, preset: str, regime: str, lengths: tuple[int, ...], covers: str) -> Line:
        return kept(name, preset, regime, 64, lengths, covers=covers)

    yield from short_prefill(line)
