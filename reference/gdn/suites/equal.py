"""Rows of sequences that are all equally long: one of every definition whose other rows have none.

A check calls again with the bounds of sequences moved. Of unequal lengths it keeps the longest, so that a kernel which
keeps that from an earlier call shows here alone.
"""

from collections.abc import Iterator

from .convolution import convolution
from .edges import windowed
from .from_conv import from_conv
from .heads import K64_V128, SMALL
from .layer import layer
from .line import Line, Rows
from .neg_eigval import AS_OLMO
from .prefill_pool import of_slot_zero, prefill_pool

NAME, COVERS = "padded_batch", "sequences equally long"
LENGTHS = (33, 33)


def equal_pool() -> Iterator[Line]:
    yield prefill_pool(NAME, SMALL, "slow_decay", LENGTHS, "+-", covers=COVERS)


def equal_from_conv() -> Iterator[Line]:
    yield from_conv(NAME, SMALL, "slow_decay", LENGTHS, covers=COVERS)


def equal_convolution() -> Iterator[Line]:
    yield convolution(NAME, SMALL, LENGTHS, "+-", covers=COVERS)


def equal_windows() -> Iterator[Line]:
    yield windowed(NAME, SMALL, 64, (70, 70), "+-", (61, 10), covers=COVERS)


def equal_layer() -> Iterator[Line]:
    yield layer(NAME, SMALL, (20, 20), "+-", covers=COVERS)


def equal_neg_layer() -> Iterator[Line]:
    yield layer(NAME, K64_V128, (20, 20), "+-", **AS_OLMO, covers=COVERS)


STATES = ("", "_bf16_state")
EQUAL: dict[str, Rows] = {
    **{f"gdn_prefill_pool_k_last{state}": equal_pool for state in STATES},
    "gdn_prefill_pool_k_last_slot_zero": of_slot_zero(equal_pool),
    **{f"gdn_prefill_from_conv{rows}{state}": equal_from_conv for rows in ("", "_f32_qkv") for state in STATES},
    "gdn_conv1d_prefill": equal_convolution, "gdn_conv_gates_prefill": equal_convolution,
    "gdn_conv1d_checkpoints_absolute": equal_windows,
    "gdn_layer_prefill": equal_layer, "gdn_layer_prefill_neg_eigval": equal_neg_layer,
}  # fmt: skip
