"""The rows of prefill_rows.py, in groups, and the least time that each can take. Needs no GPU."""

import random
import zlib
from pathlib import Path
from typing import NamedTuple

COPY_RATES, PRODUCTS = {"H200": 4.2e12, "H100": 3.0e12}, 790e12  # bytes of a copy, operations of products, a second
LONG_HEADS = ((2, 8), (4, 16), (8, 32), (16, 32), (16, 64), (16, 48))
SHORT_HEADS = ((16, 32), (4, 12), (16, 64))
RAGGED = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)
LONG = {
    "1x2048": (2048,), "1x8192": (8192,), "1x32768": (32768,), "2x4096": (4096,) * 2, "4x8192": (8192,) * 4,
    "4x2048": (2048,) * 4, "8x1024": (1024,) * 8, "ragged16": RAGGED,
}  # fmt: skip
OF_64_HEADS = ((8, 8), (16, 16), (16, 32))
OF_64 = {
    "4x2048": (2048,) * 4, "8x512": (512,) * 8, "16x512": (512,) * 16, "32x256": (256,) * 32, "64x128": (128,) * 64,
    "1x8192": (8192,),
}  # fmt: skip
SHORT = ((64, 1), (128, 33), (32, 64), (64, 128), (256, 128), (512, 40), (100, 300), (48, 512), (24, 1000))


class Row(NamedTuple):
    name: str
    heads: tuple[int, int]  # query and key heads; value heads
    lengths: tuple[int, ...]
    group: str
    head_size: int = 128


def build_of(build: Path, folder: Path, name: str) -> Path:
    """Where a solution's kernels are built: versions of one name, and variants of one folder, are apart."""
    return build / f"{folder.name}-{zlib.crc32(f'{folder.resolve()}:{name}'.encode()):08x}"


def rows() -> list[Row]:
    """Each group follows the other: no run leaves one out that does not ask to."""
    found = [Row(f"{hk}/{h} {name}", (hk, h), x, "long") for hk, h in LONG_HEADS for name, x in LONG.items()]
    draw = random.Random(1)
    for hk, h in ((4, 16), (16, 32), (16, 64)):
        for count in (3, 8, 24, 64):
            found.append(Row(f"{hk}/{h} lognormal{count}", (hk, h), lognormal(draw, count), "long"))
    for hk, h in SHORT_HEADS:
        found += [Row(f"{hk}/{h} short {n}x{tokens}", (hk, h), (tokens,) * n, "short") for n, tokens in SHORT]
    sets = OF_64 | {"lognormal16": lognormal(random.Random(1), 16)}
    found += [Row(f"{hk}/{h} d64 {name}", (hk, h), x, "d64", 64) for hk, h in OF_64_HEADS for name, x in sets.items()]
    return found


def chosen(texts: str) -> list[Row]:
    """Rows of one of these groups, or with one of these texts in their name; they are separated by commas."""
    return [row for row in rows() if any(text == row.group or text in row.name for text in texts.split(","))]


def lognormal(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(min(16384, max(1, round(draw.lognormvariate(6.5, 1.2)))) for _ in range(count))


def bound(row: Row, copy_rate: float) -> float:
    """Microseconds: inputs read once and outputs written once, or the causal products."""
    (hk, h), total, D = row.heads, sum(row.lengths), row.head_size
    moved = total * (2 * D * (2 * hk + 2 * h) + 8 * h) + 8 * len(row.lengths) * h * D * D
    # Three products with the state, and four with a lower triangle of 64 tokens.
    operations = 6 * D * D + 4 * 65 * D
    return 1e6 * max(moved / copy_rate, total * h * operations / PRODUCTS)
