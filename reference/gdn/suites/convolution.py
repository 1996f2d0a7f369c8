"""Rows of the convolution, over sequences and of one token."""

from collections.abc import Iterator
from typing import Any

from .decode import decode
from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .prefill import prefill
from .slots import somewhere


def convolution(
    name: str, preset: str, lengths: tuple[int, ...], flags: str, skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`flags`: + for a sequence that goes on from its slot, - for one that starts from zeros. Slots anywhere."""
    assert len(flags) == len(lengths)
    num_slots = len(lengths) + 3
    slots = somewhere(f"convolution {name}", len(lengths), num_slots)
    chosen = [-1 if n in skipped else slot for n, slot in enumerate(slots)]
    line = prefill(name, preset, more.pop("regime", "typical"), lengths, **more)
    line["axes"]["num_slots"] = num_slots
    return {**line, "integers": {"slots": chosen, "has_initial_state": [int(flag == "+") for flag in flags]}}


def convolution_smoke() -> Iterator[Line]:
    yield convolution(
        "ragged", SMALL, (1, 70, 2, 129), "+-+-", covers="sequences around the kernel's width and a block"
    )
    yield convolution("shorter", GROUPS, (1, 1, 2, 2, 3, 3), "+-+-+-", covers="sequences shorter than the kernel")
    yield convolution("empty", SMALL, (0, 5, 0, 0), "+-+-", covers="empty sequences, whose states stay")
    yield convolution("width_2", D120, (1, 40, 65), "++-", covers="a kernel of two tokens")
    yield convolution("width_3", GVA_D120, (2, 1, 66), "+-+", covers="a kernel of three tokens", omit=["bias"])
    yield convolution(
        "skips", GROUPS, (9, 3, 30), "+++", skipped=(0,), gaps={"conv_states": 64},
        covers="a sequence without a slot; slots that stand apart",
    )  # fmt: skip


def convolution_conformance() -> Iterator[Line]:
    yield convolution("no_tokens", SMALL, (0,), "+", covers="no tokens at all")
    yield convolution("all_skipped", SMALL, (4, 9), "+-", skipped=(0, 1), covers="no sequence to do")
    yield convolution("no_bias", GROUPS_128, (65, 4), "+-", omit=["bias"], covers="the bias absent: zeros")
    yield convolution("widest", QWEN3_NEXT, (5, 1, 2), "+-+", covers="8192 channels of a real model")
    yield convolution(
        "large_states", GROUPS_OF_3, (33, 64, 1), "+++", regime="large_initial_state",
        covers="states that outweigh what follows",
    )  # fmt: skip
    yield convolution("many", SMALL, (3, 1, 2, 5) * 18, "+-+-" * 18, covers="more sequences than a block of them")
    yield convolution("long", SMALL_128, (700, 1, 290), "+-+", covers="many blocks of tokens")


def convolution_performance() -> Iterator[Line]:
    for name, lengths in (("1x2048", (2048,)), ("4x2048", (2048,) * 4), ("1x8192", (8192,))):
        yield convolution(f"16x32_{name}", QWEN3_NEXT, lengths, "-" * len(lengths), omit=["bias"])


def shifted(name: str, preset: str, batch: int, num_slots: int, skipped: tuple[int, ...] = (), **more: Any) -> Line:
    """One token of each row of a batch, on slots anywhere."""
    slots = somewhere(f"convolution {name}", batch, num_slots)
    line = decode(name, preset, more.pop("regime", "typical"), batch, **more)
    line["axes"]["num_slots"] = num_slots
    return {**line, "integers": {"slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)]}}


def convolution_decode_smoke() -> Iterator[Line]:
    yield shifted("batch_8", GROUPS_128, 8, 11, covers="a batch as models have it")
    yield shifted("width_2", D120, 5, 6, covers="a state of one input")
    yield shifted("width_3", GVA_D120, 5, 9, omit=["bias"], covers="a state of two inputs, no bias")
    yield shifted("skips", SMALL_128, 6, 8, skipped=(0, 3, 5), covers="rows skipped first, between and last")
    yield shifted("strided", SMALL, 4, 7, gaps={"conv_states": 192}, covers="a gap between slots")


def convolution_decode_conformance() -> Iterator[Line]:
    yield shifted("one_row", SMALL, 1, 1, covers="batch 1, a pool of one slot")
    yield shifted("batch_65", SMALL, 65, 300, covers="more rows than a block of them")
    yield shifted("all_skipped", SMALL, 3, 4, skipped=(0, 1, 2), covers="no row to do")
    yield shifted("large_states", GROUPS_OF_3, 5, 6, regime="large_initial_state", covers="states that outweigh x")
    yield shifted("no_bias", GROUPS_128, 3, 5, omit=["bias"], covers="the bias absent: zeros")
    yield shifted("widest", QWEN3_NEXT, 4, 5, covers="8192 channels of a real model")


def convolution_decode_performance() -> Iterator[Line]:
    for batch in (1, 16, 64, 256):
        yield shifted(f"16x32_batch_{batch}", QWEN3_NEXT, batch, 512, omit=["bias"])


CONVOLUTION = {
    "smoke": convolution_smoke, "conformance": convolution_conformance, "performance": convolution_performance,
}  # fmt: skip
CONVOLUTION_DECODE = {
    "smoke": convolution_decode_smoke, "conformance": convolution_decode_conformance,
    "performance": convolution_decode_performance,
}  # fmt: skip
