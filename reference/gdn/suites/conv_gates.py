"""Rows of everything between the projections and the rule."""

from collections.abc import Iterator

from .convolution import convolution
from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, QWEN3_NEXT, QWEN_397B, QWEN_TP4, SMALL, SMALL_128
from .line import RAGGED_16, Line


def conv_gates_smoke() -> Iterator[Line]:
    yield convolution(
        "ragged", SMALL, (1, 70, 2, 129), "+-+-", covers="sequences around the kernel's width and a tile of tokens"
    )
    yield convolution("shorter", GROUPS, (1, 1, 2, 2, 3, 3), "+-+-+-", covers="sequences shorter than the kernel")
    yield convolution("empty", SMALL_128, (0, 5, 0, 0), "+-+-", covers="empty sequences, whose states stay")
    yield convolution("width_2", D120, (1, 40, 65), "++-", covers="a kernel of two tokens, as many keys as values")
    yield convolution("width_3", GROUPS_OF_3, (2, 1, 66), "+-+", covers="a kernel of three tokens", omit=["conv_bias"])
    yield convolution(
        "skips", GROUPS, (9, 3, 0, 30), "++-+", skipped=(0,), gaps={"conv_states": 64},
        covers="a sequence without a slot, whose tokens leave a state alone; slots that stand apart",
    )  # fmt: skip
    yield convolution(
        "tiny", SMALL_128, (40,), "-", regime="tiny_keys", omit=["conv_bias"],
        covers="vectors as short as the norm's epsilon, which stands inside the root",
    )  # fmt: skip
    large = convolution(
        "large_steps", GROUPS, (30, 11), "-+", regime="large_steps", covers="gates whose exponentials overflow"
    )
    yield large | {"seed": 2}  # with the seed of its name steps end at 47, and exp(47) is finite


def conv_gates_conformance() -> Iterator[Line]:
    yield convolution("no_tokens", SMALL, (0,), "+", covers="no tokens at all")
    yield convolution("all_skipped", SMALL, (4, 9), "+-", skipped=(0, 1), covers="no sequence to do")
    yield convolution("no_bias", GROUPS_128, (65, 4), "+-", omit=["conv_bias"], covers="the bias absent: zeros")
    yield convolution(
        "tile_edges", SMALL_128, (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65), "+-" * 6,
        covers="lengths around every tile that a kernel may take",
    )  # fmt: skip
    yield convolution("one_by_one", GROUPS_128, (1,) * 40, "+--+" * 10, covers="a tile of forty sequences")
    yield convolution(
        "skips_between",
        SMALL_128,
        (3, 40, 0, 2, 33),
        "+++-+",
        skipped=(1, 3),
        covers="tiles of which a part is skipped",
    )
    yield convolution("resets", GROUPS_128, (65, 30), "-+", regime="hard_reset", covers="alpha = 0 at tokens")
    yield convolution("beta_zero", SMALL, (20, 9), "-+", regime="beta_zero", covers="nothing is written")
    yield convolution("fast_decay", SMALL_128, (33,), "+", regime="fast_decay", covers="alpha near 0")
    yield convolution("slow_decay", SMALL_128, (33,), "+", regime="slow_decay", covers="alpha near 1")
    yield convolution(
        "large_states", GROUPS_OF_3, (33, 64, 1), "+++", regime="large_initial_state",
        covers="states that outweigh what follows",
    )  # fmt: skip
    yield convolution("widest", QWEN3_NEXT, (5, 1, 2), "+-+", covers="16 and 32 heads: 8192 channels of a real model")
    yield convolution("most_values", QWEN_397B, (9, 2), "-+", omit=["conv_bias"], covers="16 and 64 heads")
    yield convolution("many", SMALL, (3, 1, 2, 5) * 18, "+-+-" * 18, covers="more sequences than a block of them")
    yield convolution("long", SMALL_128, (700, 1, 290), "+-+", covers="many tiles of tokens")


def conv_gates_strict() -> Iterator[Line]:
    yield convolution(
        "strict_overflow", SMALL_128, (9, 1, 70), "+++", regime="reset_large_state",
        covers="inputs of 1e9, whose exponentials overflow in SiLU and in softplus",
    )  # fmt: skip
    yield convolution(
        "strict_tiny", GROUPS_OF_3, (50, 3), "--", regime="tiny_keys", omit=["conv_bias"],
        covers="vectors far shorter than the norm's epsilon",
    )  # fmt: skip


def conv_gates_performance() -> Iterator[Line]:
    lengths = {
        "1x2048": (2048,), "1x8192": (8192,), "4x2048": (2048,) * 4, "ragged_16": RAGGED_16, "1x32768": (32768,),
    }  # fmt: skip
    for label, preset in (("4x8", QWEN_TP4), ("16x32", QWEN3_NEXT)):
        for name, each in lengths.items():
            yield convolution(f"{label}_{name}", preset, each, "-" * len(each), omit=["conv_bias"])


CONV_GATES = {
    "smoke": conv_gates_smoke, "conformance": conv_gates_conformance, "strict": conv_gates_strict,
    "performance": conv_gates_performance,
}  # fmt: skip
