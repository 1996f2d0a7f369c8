"""Rows of the gated norm."""

from collections.abc import Iterator

from .decode import decode
from .heads import GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line


def norm_smoke() -> Iterator[Line]:
    yield decode("rows", GROUPS_128, "typical", 9, covers="rows as models have them")
    yield decode("tiny", SMALL, "tiny_keys", 7, covers="elements near 1e-4: eps stands inside the root")
    yield decode("large_gate", SMALL_128, "large_steps", 8, covers="gates whose exponential overflows")
    yield decode("head_size_120", GVA_D120, "typical", 5, covers="a head size that no power of two divides")
    yield decode("eps_given", SMALL, "tiny_keys", 3, scalars={"eps": 1e-4}, covers="an eps of its own")


def norm_conformance() -> Iterator[Line]:
    yield decode("no_rows", SMALL, "typical", 0, covers="no tokens at all")
    yield decode("one_row", SMALL, "typical", 1, covers="one token")
    yield decode("rows_257", SMALL, "typical", 257, covers="more rows than any block of them")
    yield decode("groups_of_three", GROUPS_OF_3, "typical", 11, covers="six heads")
    yield decode("eps_large", SMALL_128, "typical", 4, scalars={"eps": 0.5}, covers="an eps that rivals the mean")
    yield decode("eps_zero", SMALL_128, "tiny_keys", 4, scalars={"eps": 0.0}, covers="eps 0.0 is no absent eps")
    yield decode("qwen3_next_heads", QWEN3_NEXT, "typical", 12, covers="32 heads")


def norm_performance() -> Iterator[Line]:
    for rows in (16, 2048, 8192):
        yield decode(f"32_heads_{rows}_tokens", QWEN3_NEXT, "typical", rows)


NORM = {"smoke": norm_smoke, "conformance": norm_conformance, "performance": norm_performance}
