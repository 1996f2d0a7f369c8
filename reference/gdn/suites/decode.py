"""Rows of decode, and those of them that are shown again of another type of state or another packing."""

from collections.abc import Iterator
from typing import Any

from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, QWEN_397B, QWEN_TP4, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line, Rows


def decode(name: str, preset: str, regime: str, batch: int, **more: Any) -> Line:
    return {"name": name, "preset": preset, "axes": {"batch_size": batch}, "regime": regime, **more}


def decode_smoke() -> Iterator[Line]:
    """About 500 (sequence, head) pairs."""
    yield decode("batch_8", GROUPS_128, "typical", 8, covers="a batch as models have it")
    yield decode("resets", SMALL_128, "hard_reset", 16, covers="alpha = 0 in some heads")
    yield decode("qwen3_next_tp4", QWEN_TP4, "typical", 4, covers="4 and 8 heads of a real model")
    yield decode("no_l2norm", GROUPS, "typical", 8, scalars={"use_qk_l2norm": False}, covers="keys as they are")
    yield decode("scale_zero", SMALL, "typical", 4, scalars={"scale": 0.0}, covers="scale 0.0 is no absent scale")
    yield decode("head_size_120", GVA_D120, "typical", 8, covers="a head size that no power of two divides")
    yield decode("tiny_keys", GROUPS_128, "tiny_keys", 8, covers="the epsilon of the norm stands inside of the root")
    yield decode("long_memory", GROUPS_128, "long_memory", 16, covers="alpha = 1 exactly")
    yield decode("one_row", SMALL, "slow_decay", 1, covers="batch 1")
    yield {
        "name": "qwen3_next_model", "preset": GROUPS, "axes": {"batch_size": 4},
        "tensors": "tensors/qwen3_next.safetensors", "covers": "what a real model feeds its layers",
    }  # fmt: skip


def decode_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield decode(f"regime_{regime}", GROUPS_128, regime, 7, covers=f"the regime {regime}")
    for batch in (1, 2, 3, 17, 64, 65):
        yield decode(f"batch_{batch}", SMALL_128, "typical", batch, covers=f"a batch of {batch}")
    yield decode("batch_257", SMALL, "typical", 257, covers="more rows than any block of them")
    yield decode("head_size_64", GROUPS, "hard_reset", 5, covers="head size 64 with resets")
    yield decode("head_size_120_mha", D120, "typical", 5, covers="head size 120, as many keys as values")
    yield decode("head_size_120_gva", GVA_D120, "slow_decay", 9, covers="head size 120, GVA")
    yield decode("groups_of_three", GROUPS_OF_3, "typical", 5, covers="three value heads a key head")
    yield decode("qwen3_next_heads", QWEN3_NEXT, "typical", 6, covers="16 and 32 heads")
    yield decode("qwen3.5_397b_heads", QWEN_397B, "typical", 3, covers="16 and 64 heads")
    yield decode("qwen3.5_27b_tp2", "qwen3.5-27b-tp2", "typical", 3, covers="8 and 24 heads")
    yield decode("scale_given", SMALL, "typical", 5, scalars={"scale": 0.3}, covers="a scale of its own")
    yield decode("scale_negative", SMALL, "typical", 3, scalars={"scale": -1.5}, covers="a negative scale")
    yield decode(
        "l2norm_explicit",
        SMALL,
        "typical",
        3,
        scalars={"use_qk_l2norm": True},
        covers="the switch given as its default",
    )
    yield decode(
        "no_l2norm_128",
        GROUPS_128,
        "slow_decay",
        5,
        scalars={"use_qk_l2norm": False},
        covers="keys as they are, head size 128",
    )
    yield decode(
        "no_l2norm_tiny_keys",
        SMALL_128,
        "tiny_keys",
        5,
        scalars={"use_qk_l2norm": False},
        covers="small keys that nobody normalises",
    )
    yield decode(
        "scale_zero_no_l2norm",
        SMALL,
        "typical",
        3,
        scalars={"scale": 0.0, "use_qk_l2norm": False},
        covers="both switches at once",
    )


def decode_performance() -> Iterator[Line]:
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        yield decode(f"16x32_batch_{batch}", QWEN3_NEXT, "typical", batch)
    for label, preset, batch in (("4x8", QWEN_TP4, 64), ("4x8", QWEN_TP4, 512), ("16x64", QWEN_397B, 64)):
        yield decode(f"{label}_batch_{batch}", preset, "typical", batch)


# What decode's own suites show of the recurrence need not be shown again of another type or another packing of it.
OF_A_VARIANT = {
    "smoke": ("batch_8", "resets", "no_l2norm", "head_size_120", "long_memory", "one_row"),
    "conformance": (
        *(f"regime_{regime}" for regime in ONE_TOKEN_REGIMES), "batch_3", "batch_65", "head_size_64",
        "head_size_120_gva", "groups_of_three", "qwen3_next_heads", "scale_zero_no_l2norm", "no_l2norm_tiny_keys",
    ),
}  # fmt: skip


def variant(suite: str, rows: Rows) -> Rows:
    return lambda: (row for row in rows() if row["name"] in OF_A_VARIANT[suite])


DECODE = {"smoke": decode_smoke, "conformance": decode_conformance, "performance": decode_performance}
VARIANT = {
    "smoke": variant("smoke", decode_smoke), "conformance": variant("conformance", decode_conformance),
    "performance": decode_performance,
}  # fmt: skip
