"""Rows with tokens of zeros, as padding leaves them: one of every definition.

A norm that divides by anything but the root of a sum with its epsilon is NaN there and right everywhere else. Where
queries and keys are given as they are, a token without a key decays a state and writes nothing.
"""

from collections.abc import Iterator

from .layer import layer, layer_rows
from .rows import SMALL_128, Line, Rows, decode, in_place, kept, packed, pool, prefill, verify
from .stages import stage

NAME, REGIME = "regime_blank_tokens", "blank_tokens"
OF_KEYS = "keys of zeros: a token that decays and writes nothing"
OF_NORM = "queries and keys of zeros, which a norm divides"
OF_LAYER = "tokens of zeros, and heads that read zeros"
BATCH = 12  # rows: every second is padding
SEED: Line = {"seed": 4}  # of such a batch: some rows have a query and no key, and others a key and no query


def blank_prefill() -> Iterator[Line]:
    yield prefill(NAME, SMALL_128, REGIME, (65, 1, 33), covers=OF_KEYS)


def blank_checkpoints() -> Iterator[Line]:
    yield kept(NAME, SMALL_128, REGIME, 64, (65, 1, 130), covers=OF_KEYS)


def blank_stage(counted: bool, covers: str) -> Rows:
    return lambda: iter((stage(NAME, SMALL_128, REGIME, (65, 1, 33), counted, covers=covers),))


def blank_raw() -> Iterator[Line]:
    yield prefill(NAME, SMALL_128, REGIME, (65, 1, 33), covers=OF_NORM)


def blank_decode() -> Iterator[Line]:
    yield decode(NAME, SMALL_128, REGIME, BATCH, **SEED, covers=OF_NORM)


def blank_pool() -> Iterator[Line]:
    yield pool(NAME, SMALL_128, REGIME, BATCH + 3, in_place("blank", BATCH, BATCH + 3), **SEED, covers=OF_NORM)


def blank_verify() -> Iterator[Line]:
    yield verify(NAME, SMALL_128, REGIME, 3, [0, 1, 3], covers=OF_NORM)


def blank_layer() -> Iterator[Line]:
    yield layer(NAME, SMALL_128, (20, 3, 9), "+++", regime=REGIME, covers=OF_LAYER)


def blank_layer_decode() -> Iterator[Line]:
    yield layer_rows(NAME, SMALL_128, BATCH, regime=REGIME, **SEED, covers=OF_LAYER)


BLANK: dict[str, Rows] = {
    "kda_prefill_k_last": blank_prefill, "kda_prefill_k_first": blank_prefill, "kda_prefill_raw_gates": blank_raw,
    "kda_prefill_checkpoints": blank_checkpoints, "kda_prefill_backward_k_last": blank_prefill,
    "kda_chunk_wy": blank_stage(False, "keys of zeros: rows of the identity in the system"),
    "kda_chunk_state": blank_stage(True, OF_KEYS), "kda_chunk_output": blank_stage(True, "outputs of zeros"),
    "kda_decode_k_last": blank_decode, "kda_decode_k_last_bf16_state": blank_decode,
    "kda_decode_packed_k_last": packed(blank_decode), "kda_decode_packed_k_last_bf16_state": packed(blank_decode),
    "kda_decode_pool_k_last": blank_pool, "kda_decode_pool_k_last_bf16_state": blank_pool,
    "kda_verify_k_last": blank_verify, "kda_layer_prefill": blank_layer, "kda_layer_decode": blank_layer_decode,
}  # fmt: skip
