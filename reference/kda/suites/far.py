"""Rows past 2^31 elements, drawn on the device. A sample is judged: the first and the last are in it."""

from collections.abc import Iterator

from .layer import layer, layer_rows
from .rows import SMALL_128, Line, Rows, decode, in_place, kept, pool, prefill, verify
from .stages import stage

KIMI, WIDE = "kimi-linear-48b-a3b-tp1", "synthetic-gva-16x64-d128"
LONG_ROWS = (2017,) * 130  # 262,210 tokens: past 2^31 elements of 64 heads of 128
SHORT_ROWS = (1, 2, 0, 1, 3) * 820  # 4,100 sequences: past 2^31 elements of their 32 states
# Of one token, rounding may leave nothing of a gate's gradient, or of a row of a layer's state.
TOKENS_8 = (8, 9, 0, 8, 10) * 820
STATES = "131,200 pairs, and more than 2^31 elements of states"


def far(sequences: int = 12, heads: int | None = 3) -> Line:
    judged = {"sequences": sequences} | ({} if heads is None else {"heads": heads})
    return {"device": "cuda", "drawn": "device", "judged": judged}


def of_gates() -> Iterator[Line]:
    """The gates of prefill, of all that a call has, are past 2^31 elements first: in float32, one for each channel."""
    yield prefill("past_2_31_gates", WIDE, "typical", LONG_ROWS, **far(4, 2), covers="more than 2^31 gates and outputs")


def of_states() -> Iterator[Line]:
    yield prefill("past_2_31_states", KIMI, "typical", SHORT_ROWS, **far(), covers=STATES)


def of_checkpoints() -> Iterator[Line]:
    yield kept(
        "past_2_31_checkpoints", KIMI, "typical", 64, (4160,) * 64, **far(4, 2),
        covers="more than 2^31 elements of checkpoints",
    )  # fmt: skip
    yield kept("past_2_31_states", KIMI, "typical", 64, SHORT_ROWS, **far(), covers=STATES)


def of_gradients() -> Iterator[Line]:
    """All heads of a sample of sequences: dq and dk are sums over heads."""
    yield prefill("past_2_31_states", KIMI, "typical", TOKENS_8, **far(4, None), covers=STATES)


def of_decode() -> Iterator[Line]:
    yield decode("past_2_31", KIMI, "typical", 4100, **far(), covers=STATES)
    yield decode(
        "past_2_31_rows", SMALL_128, "typical", 65540, **far(),
        covers="the same with few heads: 65,540 rows, past what one axis of a grid takes",
    )  # fmt: skip


def of_pool() -> Iterator[Line]:
    rows = in_place("past_2_31_rows", 4100, 4200)
    yield pool("past_2_31_rows", KIMI, "typical", 4200, rows, **far(), covers=STATES)


def of_verify() -> Iterator[Line]:
    accepted = [n % 2 for n in range(2100)]
    yield verify(
        "past_2_31", KIMI, "typical", 1, accepted, **far(),
        covers="67,200 pairs in a pool of more than 2^31 elements",
    )  # fmt: skip


def of_solved() -> Iterator[Line]:
    covers = "more than 2^31 elements of gates, v, u and w"
    yield stage("past_2_31", WIDE, "typical", LONG_ROWS, counted=False, **far(4, 2), covers=covers)


def of_chunks() -> Iterator[Line]:
    covers = "133,120 pairs of a chunk and a head, and more than 2^31 elements of their states"
    yield stage("past_2_31_states", KIMI, "typical", (4160,) * 64, counted=True, **far(4, 2), covers=covers)


def of_layer() -> Iterator[Line]:
    yield on_far_slots(layer("past_2_31_states", KIMI, TOKENS_8, "+-+-+" * 820, **far(8, None), covers=STATES))


def of_layer_decode() -> Iterator[Line]:
    yield on_far_slots(layer_rows("past_2_31_states", KIMI, 4100, **far(8, None), covers=STATES))


def on_far_slots(line: Line) -> Line:
    """In pools of 4,200 slots, the last one among them."""
    line["axes"]["num_slots"] = 4200
    for pool_slots in ("conv_slots", "state_slots"):
        line["integers"][pool_slots][-1] = 4199
    return line


FAR: dict[str, tuple[Rows, ...]] = {
    "kda_prefill_k_last": (of_gates, of_states), "kda_prefill_k_first": (of_states,),
    "kda_prefill_raw_gates": (of_gates, of_states), "kda_prefill_checkpoints": (of_checkpoints,),
    "kda_prefill_backward_k_last": (of_gradients,),
    "kda_decode_k_last": (of_decode,), "kda_decode_k_last_bf16_state": (of_decode,),
    "kda_decode_pool_k_last": (of_pool,), "kda_decode_pool_k_last_bf16_state": (of_pool,),
    "kda_decode_packed_k_last": (of_decode,), "kda_decode_packed_k_last_bf16_state": (of_decode,),
    "kda_verify_k_last": (of_verify,),
    "kda_chunk_wy": (of_solved,), "kda_chunk_state": (of_chunks,), "kda_chunk_output": (of_chunks,),
    "kda_layer_prefill": (of_layer,), "kda_layer_decode": (of_layer_decode,),
}  # fmt: skip
