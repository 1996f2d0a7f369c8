"""Rows past 2^31 elements, drawn on the device. A sample is judged: the first and the last are in it."""

from collections.abc import Iterator

from .checkpoints import kept
from .commit import commit
from .conv_trees import conv_tree
from .conv_verify import conv_verify
from .convolution import convolution, shifted
from .decode import decode
from .drafts import drafts
from .edges import edged, windowed
from .from_conv import from_conv
from .heads import QWEN3_NEXT, QWEN_397B, SMALL_128
from .layer import layer, layer_rows
from .line import Line
from .padded import MASKS, padded
from .pool import pool
from .prefill import prefill
from .prefill_pool import prefill_pool
from .slots import in_place, somewhere
from .stages import stage
from .trees import PAIRS, tree
from .verify import verify

LONG_ROWS = (2017,) * 130  # 262,210 tokens: past 2^31 elements of 64 heads of 128, or of 8,192 channels
SHORT_ROWS = (1, 2, 0, 1, 3) * 820  # 4,100 sequences: past 2^31 elements of their 32 states
STEPS = "65,600 pairs, and a buffer of steps of more than 2^31 elements"
ON_DEVICE = {"device": "cuda", "drawn": "device"}


def far(sequences: int = 12, heads: int | None = 3) -> Line:
    return {**ON_DEVICE, "judged": {"sequences": sequences} | ({} if heads is None else {"heads": heads})}


def far_prefill() -> Iterator[Line]:
    yield prefill(
        "past_2_31_values",
        QWEN_397B,
        "typical",
        LONG_ROWS,
        **far(4, 2),
        covers="more than 2^31 elements of v and output",
    )
    yield prefill(
        "past_2_31_states", QWEN3_NEXT, "typical", SHORT_ROWS, **far(), covers="more than 2^31 elements of states"
    )


def far_checkpoints() -> Iterator[Line]:
    yield kept(
        "past_2_31_checkpoints", QWEN3_NEXT, "typical", 64, (4160,) * 64, **far(4, 2),
        covers="more than 2^31 elements of checkpoints",
    )  # fmt: skip


def far_decode() -> Iterator[Line]:
    yield decode("past_2_31", QWEN3_NEXT, "typical", 4100, **far(), covers="more than 2^31 elements of states")
    yield decode(
        "past_2_31_rows", SMALL_128, "typical", 65540, **far(),
        covers="the same with few heads: 65,540 rows, past what one axis of a grid takes",
    )  # fmt: skip


def far_pool() -> Iterator[Line]:
    rows = in_place("past_2_31_rows", 4100, 4200)
    yield pool(
        "past_2_31_rows", QWEN3_NEXT, "typical", 4200, rows, **far(),
        covers="131,200 pairs in a pool of more than 2^31 elements",
    )  # fmt: skip


def far_verify() -> Iterator[Line]:
    accepted = [n % 2 for n in range(2100)]
    yield verify(
        "past_2_31", QWEN3_NEXT, "typical", 1, accepted, **far(),
        covers="67,200 pairs in a pool of more than 2^31 elements",
    )  # fmt: skip


def far_convolution(omit: str) -> Iterator[Line]:
    yield convolution(
        "past_2_31", QWEN3_NEXT, LONG_ROWS, "-+" * 65, omit=[omit], **far(4, None),
        covers="more than 2^31 elements of x and output",
    )  # fmt: skip


def far_states_of_convolution() -> Iterator[Line]:
    slots = {"slots": [87399, 0, 87381, 43690, 87380]}  # 2^31 lies within slot 87,381
    line = convolution("past_2_31_states", QWEN3_NEXT, (3, 1, 5, 2, 4), "+++-+", **far(8, None))
    line["axes"]["num_slots"] = 87400
    yield {**line, "integers": line["integers"] | slots, "covers": "a pool of more than 2^31 elements"}


def far_states_of_convolution_decode() -> Iterator[Line]:
    line = shifted("past_2_31_states", QWEN3_NEXT, 5, 87400, **far(8, None))
    yield {
        **line,
        "integers": {"slots": [87399, 0, 87381, 43690, 87380]},
        "covers": "a pool of more than 2^31 elements",
    }


def far_conv_verify() -> Iterator[Line]:
    line = conv_verify("past_2_31_states", QWEN3_NEXT, 4, [1, 4, 2, 3, 1], [4, 3, 4, 1, 2], **far(8, None))
    line["axes"]["num_slots"] = 43700
    slots = {"slots": [43699, 0, 43691, 21845, 43690]}  # 2^31 lies within slot 43,690
    yield {**line, "integers": line["integers"] | slots, "covers": "a pool of more than 2^31 elements"}


def far_conv_tree() -> Iterator[Line]:
    line = conv_tree("past_2_31_steps", QWEN3_NEXT, [PAIRS] * 5, [4, 3, 4, 1, 2], **far(8, None))
    line["axes"]["num_slots"] = 21900
    steps = {"step_slots": [21899, 0, 21846, 10922, 21845]}  # 2^31 lies within slot 21,845 of the steps
    yield {**line, "integers": line["integers"] | steps, "covers": "a buffer of more than 2^31 elements"}


def far_edges() -> Iterator[Line]:
    yield edged(
        "past_2_31_checkpoints", QWEN3_NEXT, "typical", 64, (4160,) * 64, (0, 31), **far(4, 2),
        covers="more than 2^31 elements of checkpoints",
    )  # fmt: skip


def far_windows() -> Iterator[Line]:
    line = windowed("past_2_31_states", QWEN3_NEXT, 64, (3, 1, 5, 2, 4), "+++-+", (62, 63, 0, 61, 60), **far(8, None))
    line["axes"]["num_slots"] = 87400
    slots = {"slots": [87399, 0, 87381, 43690, 87380]}  # 2^31 lies within slot 87,381
    yield {**line, "integers": line["integers"] | slots, "covers": "a pool of more than 2^31 elements"}
    yield windowed(
        "past_2_31", QWEN3_NEXT, 64, LONG_ROWS, "-+" * 65, (0, 31), omit=["bias"], **far(4, None),
        covers="more than 2^31 elements of x and output",
    )  # fmt: skip


def far_padded() -> Iterator[Line]:
    yield padded(
        "past_2_31_states", QWEN3_NEXT, "typical", 3, (1, 2, 0, 3, 3) * 820, MASKS, **far(),
        covers="more than 2^31 elements of states",
    )  # fmt: skip


def far_commit() -> Iterator[Line]:
    accepted = [n % 3 for n in range(2050)]
    yield commit("past_2_31_steps", QWEN3_NEXT, "typical", 2, accepted, **far(), covers=STEPS)


def far_drafts() -> Iterator[Line]:
    counts = [2 - n % 3 for n in range(2050)]
    yield drafts("past_2_31_steps", QWEN3_NEXT, "typical", 2, counts, **far(), covers=STEPS)


def far_tree() -> Iterator[Line]:
    parents: list[tuple[int, ...]] = [((-1, 0), (-1, -1))[n % 2] for n in range(2050)]
    counts = [2 - n % 3 for n in range(2050)]
    yield tree("past_2_31_steps", QWEN3_NEXT, "typical", parents, counts, **far(), covers=STEPS)


def far_prefill_pool() -> Iterator[Line]:
    yield prefill_pool(
        "past_2_31_states", QWEN3_NEXT, "typical", SHORT_ROWS, "+-+", behind=3, **far(),
        covers="more than 2^31 elements of states in a pool",
    )  # fmt: skip


def far_norm() -> Iterator[Line]:
    yield decode(
        "past_2_31", QWEN3_NEXT, "typical", 524400, **far(64), covers="more than 2^31 elements of x, z and output"
    )


def far_wy() -> Iterator[Line]:
    yield stage(
        "past_2_31", QWEN_397B, "typical", LONG_ROWS, False, **far(4, 2), covers="more than 2^31 elements of v, u and w"
    )


def far_stage() -> Iterator[Line]:
    yield stage(
        "past_2_31_states", QWEN3_NEXT, "typical", (4160,) * 64, True, **far(4, 2),
        covers="more than 2^31 elements of the states of 4,160 chunks",
    )  # fmt: skip


def far_from_conv() -> Iterator[Line]:
    yield from_conv(
        "past_2_31_rows", QWEN3_NEXT, "typical", LONG_ROWS, **far(4, 2), covers="more than 2^31 elements of qkv"
    )
    line = from_conv("past_2_31_states", QWEN3_NEXT, "typical", (3, 70, 1, 2, 65), **far(8))
    line["axes"]["num_slots"] = 4200
    slots = {"slots": [4199, 0, 4095, 4096, 2048]}
    yield {**line, "integers": slots, "covers": "a pool of more than 2^31 elements"}


def on_far_slots(line: Line) -> Line:
    """Slots on both sides of 2^31 elements, in pools of more."""
    line["axes"]["num_slots"] = 4200
    chosen = {"conv_slots": [4199, 0, 4095, 4096, 2048], "state_slots": [0, 4199, 4096, 4095, 4100]}
    return {**line, "integers": line["integers"] | chosen, "covers": "a pool of more than 2^31 elements of states"}


def far_layer() -> Iterator[Line]:
    """Long sequences that have states: what one token leaves has rows so small that no budget fits them."""
    line = on_far_slots(layer("past_2_31_states", QWEN3_NEXT, (65, 70), "++", **far(8, None)))
    yield {**line, "integers": line["integers"] | {"conv_slots": [0, 4199], "state_slots": [4199, 4096]}}


def far_layer_decode() -> Iterator[Line]:
    yield on_far_slots(layer_rows("past_2_31_states", QWEN3_NEXT, 5, **far(8, None)))


def far_core_decode() -> Iterator[Line]:
    line = layer_rows("past_2_31_rows", QWEN3_NEXT, 2100, omit=["conv_bias"], **far())
    line["axes"]["num_slots"] = 4200
    chosen = {f"{pool}_slots": somewhere(f"{pool} past_2_31_rows", 2100, 4200) for pool in ("conv", "state")}
    yield {**line, "integers": chosen, "covers": "67,200 pairs in a pool of more than 2^31 elements of states"}
