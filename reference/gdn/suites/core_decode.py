"""Rows of the layer without its projections, of one token."""

from collections.abc import Iterator

from .heads import (
    D120,
    D256,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GROUPS_OF_4,
    K64_V120,
    K120_V60,
    MHA_64,
    QWEN3_NEXT,
    QWEN_397B,
    QWEN_TP4,
    SMALL,
    SMALL_128,
)
from .layer import layer_rows
from .line import Line


def core_decode_smoke() -> Iterator[Line]:
    yield layer_rows("batch_8", GROUPS_128, 8, omit=["conv_bias"], covers="a batch as models have it")
    yield layer_rows("biased", SMALL, 5, covers="a bias of the convolution")
    yield layer_rows("width_2", MHA_64, 5, covers="a state of one input, as many keys as values")
    yield layer_rows("groups_of_three", GROUPS_OF_3, 3, covers="three value heads a key head, a kernel of three tokens")
    yield layer_rows("k64_v120", K64_V120, 5, omit=["conv_bias"], covers="heads of values wider than those of keys")
    yield layer_rows("resets", SMALL_128, 7, regime="hard_reset", covers="alpha = 0 in some heads")
    gaps = {"conv_states": 64, "recurrent_states": 192}
    yield layer_rows(
        "skips", SMALL_128, 6, skipped=(0, 3, 5), gaps=gaps,
        covers="rows skipped first, between and last; slots that stand apart",
    )  # fmt: skip


def core_decode_conformance() -> Iterator[Line]:
    for regime in ("long_memory", "fast_decay", "beta_zero", "beta_one", "large_initial_state", "one_large_state"):
        yield layer_rows(f"regime_{regime}", GROUPS, regime=regime, batch=5, covers=f"the regime {regime}")
    yield layer_rows("tiny_keys", GROUPS_128, 5, regime="tiny_keys", omit=["conv_bias"],
                     covers="the epsilon of the L2 norm stands inside of the root")  # fmt: skip
    large = layer_rows("large_steps", GROUPS_128, 6, regime="large_steps", covers="gates whose exponential overflows")
    yield large | {"seed": 2}  # with the seed of its name steps end at 68, and exp(68) is finite
    yield layer_rows("reset_large_state", SMALL, 4, regime="reset_large_state", covers="resets of states of 1e9")
    yield layer_rows("one_row", SMALL_128, 1, covers="batch 1")
    yield layer_rows("batch_65", SMALL, 65, omit=["conv_bias"], covers="more rows than a block of them")
    yield layer_rows("all_skipped", SMALL, 3, skipped=(0, 1, 2), covers="no row to do")
    yield layer_rows("groups_of_four", GROUPS_OF_4, 5, omit=["conv_bias"], covers="four value heads a key head")
    yield layer_rows("head_size_256", D256, 4, omit=["conv_bias"], covers="head size 256")
    yield layer_rows("head_size_256_resets", D256, 3, regime="hard_reset", covers="head size 256, resets, a bias")
    yield layer_rows("head_size_120", D120, 5, covers="a head size that no power of two divides, a kernel of two")
    yield layer_rows("k120_v60", K120_V60, 4, regime="slow_decay", covers="heads of keys wider, no powers of two")
    yield layer_rows(
        "strided_wide", GROUPS_OF_3, 4, gaps={"conv_states": 1 << 12, "recurrent_states": 1 << 15},
        covers="gaps as long as slots",
    )  # fmt: skip
    yield layer_rows("qwen3_next_heads", QWEN3_NEXT, 4, omit=["conv_bias"], covers="16 and 32 heads")
    yield layer_rows("qwen3.5_397b_heads", QWEN_397B, 2, omit=["conv_bias"], covers="16 and 64 heads")


def core_decode_performance() -> Iterator[Line]:
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        yield layer_rows(f"16x32_batch_{batch}", QWEN3_NEXT, batch, omit=["conv_bias"])
    for label, preset, batch in (("4x8", QWEN_TP4, 64), ("16x64", QWEN_397B, 1), ("16x64", QWEN_397B, 64)):
        yield layer_rows(f"{label}_batch_{batch}", preset, batch, omit=["conv_bias"])


CORE_DECODE = {
    "smoke": core_decode_smoke, "conformance": core_decode_conformance, "performance": core_decode_performance,
}  # fmt: skip
