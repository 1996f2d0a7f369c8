"""Rows with tokens of zeros, as padding leaves them: one of every definition that has tokens.

A norm that divides by anything but the root of a sum with its epsilon is NaN there and right everywhere else. Where
queries and keys are given as they are, a token without a key decays a state and writes nothing. The convolution has no
bias in these rows: behind one no query or key is zeros.
"""

from collections.abc import Iterator

from .checkpoints import kept
from .conv_trees import conv_tree
from .conv_verify import conv_verify
from .convolution import convolution, shifted
from .decode import decode
from .drafts import drafts
from .edges import edged, windowed
from .from_conv import from_conv
from .heads import GROUPS, GROUPS_128, K96_V192
from .kv_dims import NEGATIVE
from .layer import layer, layer_rows
from .line import Line, Rows
from .neg_eigval import AS_OLMO
from .padded import padded
from .pool import pool
from .prefill import prefill
from .prefill_pool import prefill_pool
from .slots import in_place
from .stages import stage
from .trees import COMB, PAIRS, tree
from .verify import verify

NAME, REGIME = "regime_blank_tokens", "blank_tokens"
LENGTHS = (65, 1, 64)  # the second chunk of the first sequence has no token but padding, and the second no other at all
BATCH = 12  # rows: every second is padding
SEED: Line = {"seed": 4}  # of such a batch: some rows have a query and no key, and others a key and no query
OF_KEYS = "keys of zeros: a token that decays and writes nothing"
OF_NORM, OF_LAYER = "queries and keys of zeros, which a norm divides", "tokens of zeros, and heads that read zeros"
STATES = ("", "_bf16_state")


def blank_prefill() -> Iterator[Line]:
    yield prefill(NAME, GROUPS_128, REGIME, LENGTHS, covers=OF_KEYS)


def blank_prefill_kv() -> Iterator[Line]:
    yield prefill(NAME, K96_V192, REGIME, (65, 1, 70), covers=OF_KEYS)


def blank_checkpoints() -> Iterator[Line]:
    yield kept(NAME, GROUPS_128, REGIME, 64, (65, 1, 130), covers=OF_KEYS)


def blank_edges() -> Iterator[Line]:
    yield edged(NAME, GROUPS_128, REGIME, 64, LENGTHS, (62, 63, 5), covers=OF_KEYS)


def blank_padded() -> Iterator[Line]:
    covers = "keys of zeros, in padding and elsewhere: a token that decays and writes nothing"
    yield padded(NAME, GROUPS_128, REGIME, 66, (65, 1, 40), ("left", "right", "holes"), covers=covers)


def blank_prefill_pool(moved: int = 0) -> Rows:
    """`moved`: every slot so much further."""

    def rows() -> Iterator[Line]:
        line = prefill_pool(NAME, GROUPS_128, REGIME, LENGTHS, "+-", covers=OF_KEYS)
        line["axes"]["num_slots"] += moved
        line["integers"]["slots"] = [slot + moved for slot in line["integers"]["slots"]]
        yield line

    return rows


def blank_stage(counted: bool, covers: str) -> Rows:
    return lambda: iter((stage(NAME, GROUPS_128, REGIME, LENGTHS, counted, covers=covers),))


def blank_from_conv() -> Iterator[Line]:
    yield from_conv(NAME, GROUPS_128, REGIME, LENGTHS, covers=OF_NORM)


def blank_decode() -> Iterator[Line]:
    yield decode(NAME, GROUPS_128, REGIME, BATCH, **SEED, covers=OF_NORM)


def blank_decode_kv() -> Iterator[Line]:
    yield decode(NAME, K96_V192, REGIME, BATCH, **SEED, scalars=NEGATIVE, covers=OF_NORM)


def blank_pool() -> Iterator[Line]:
    rows = in_place("blank", BATCH, BATCH + 3)
    yield pool(NAME, GROUPS_128, REGIME, BATCH + 3, rows, **SEED, covers=OF_NORM)


def blank_pool_kv() -> Iterator[Line]:
    rows = in_place("blank", BATCH, BATCH + 3)
    yield pool(
        NAME, K96_V192, REGIME, BATCH + 3, rows, **SEED, scalars=NEGATIVE,
        covers=OF_NORM,
    )  # fmt: skip


def blank_verify() -> Iterator[Line]:
    yield verify(NAME, GROUPS_128, REGIME, 3, [0, 1, 3], covers=OF_NORM)


def blank_verify_kv() -> Iterator[Line]:
    yield verify(NAME, K96_V192, REGIME, 3, [0, 1, 3], scalars=NEGATIVE, covers=OF_NORM)


def blank_drafts() -> Iterator[Line]:
    yield drafts(NAME, GROUPS_128, REGIME, 3, [3, 2, 3], covers=OF_NORM)


def blank_tree() -> Iterator[Line]:
    yield tree(NAME, GROUPS_128, REGIME, [PAIRS, COMB[:4]], covers=OF_NORM)


def blank_convolution(bias: str) -> Rows:
    def rows() -> Iterator[Line]:
        covers = "windows of zeros, and of zeros in part"
        yield convolution(NAME, GROUPS_128, (65, 1, 9), "+++", regime=REGIME, omit=[bias], covers=covers)

    return rows


def blank_convolution_decode() -> Iterator[Line]:
    yield shifted(NAME, GROUPS_128, BATCH, BATCH + 2, regime=REGIME, omit=["bias"], covers="windows of zeros")


def blank_conv_verify() -> Iterator[Line]:
    yield conv_verify(NAME, GROUPS, 3, [1, 3, 2], regime=REGIME, omit=["bias"], covers="windows of zeros")


def blank_conv_tree() -> Iterator[Line]:
    yield conv_tree(NAME, GROUPS, [PAIRS, COMB[:4]], regime=REGIME, omit=["bias"], covers="windows of zeros")


def blank_windows() -> Iterator[Line]:
    starts = (62, 63, 5)
    yield windowed(
        NAME, GROUPS, 64, (65, 1, 9), "+++", starts, regime=REGIME, omit=["bias"], covers="windows of zeros are kept"
    )


def blank_norm() -> Iterator[Line]:
    yield decode(NAME, GROUPS_128, REGIME, 40, covers="x, z and weights of zeros")


def blank_layer() -> Iterator[Line]:
    yield layer(NAME, GROUPS_128, (20, 3, 9), "+++", regime=REGIME, covers=OF_LAYER)


def blank_layer_decode() -> Iterator[Line]:
    yield layer_rows(NAME, GROUPS_128, BATCH, regime=REGIME, **SEED, covers=OF_LAYER)


def blank_core_decode() -> Iterator[Line]:
    for row in blank_layer_decode():
        yield row | {"omit": ["conv_bias"]}


def blank_neg_layer() -> Iterator[Line]:
    yield layer(NAME, K96_V192, (20, 3, 9), "+++", regime=REGIME, **AS_OLMO, covers=OF_LAYER)


def blank_neg_layer_decode() -> Iterator[Line]:
    yield layer_rows(NAME, K96_V192, BATCH, regime=REGIME, **SEED, **AS_OLMO, covers=OF_LAYER)


BLANK: dict[str, Rows] = {
    "gdn_prefill_k_last": blank_prefill, "gdn_prefill_k_first": blank_prefill,
    "gdn_prefill_k_last_kv_dims": blank_prefill_kv,
    "gdn_prefill_checkpoints": blank_checkpoints, "gdn_prefill_backward_checkpoints": blank_checkpoints,
    "gdn_prefill_checkpoints_absolute": blank_edges, "gdn_prefill_padded_k_first": blank_padded,
    **{f"gdn_prefill_pool_k_last{state}": blank_prefill_pool() for state in STATES},
    "gdn_prefill_pool_k_last_slot_zero": blank_prefill_pool(moved=1),
    "gdn_chunk_wy": blank_stage(False, "keys of zeros: rows of the identity in the system"),
    "gdn_chunk_state": blank_stage(True, OF_KEYS), "gdn_chunk_output": blank_stage(True, "outputs of zeros"),
    **{f"gdn_prefill_from_conv{rows}{state}": blank_from_conv for rows in ("", "_f32_qkv") for state in STATES},
    **{f"gdn_decode_{layout}{state}": blank_decode for layout in ("k_last", "k_first") for state in STATES},
    "gdn_decode_packed_k_last": blank_decode, "gdn_decode_k_last_kv_dims": blank_decode_kv,
    **{f"gdn_decode_pool_k_last{state}": blank_pool for state in (*STATES, "_fp8_state", "_int8_state")},
    "gdn_decode_pool_k_last_kv_dims": blank_pool_kv,
    **{f"gdn_verify_k_last{state}": blank_verify for state in ("", "_fp8_state", "_int8_state")},
    "gdn_verify_k_last_kv_dims": blank_verify_kv,
    **{f"gdn_verify_drafts_k_last{state}": blank_drafts for state in STATES},
    **{f"gdn_verify_tree_k_last{state}": blank_tree for state in STATES},
    "gdn_conv1d_prefill": blank_convolution("bias"), "gdn_conv1d_decode": blank_convolution_decode,
    "gdn_conv1d_verify": blank_conv_verify, "gdn_conv1d_verify_tree": blank_conv_tree,
    "gdn_conv1d_checkpoints_absolute": blank_windows,
    "gdn_conv_gates_prefill": blank_convolution("conv_bias"), "gdn_core_decode": blank_core_decode,
    "gdn_gated_rms_norm": blank_norm,
    "gdn_layer_prefill": blank_layer, "gdn_layer_decode": blank_layer_decode,
    "gdn_layer_prefill_neg_eigval": blank_neg_layer, "gdn_layer_decode_neg_eigval": blank_neg_layer_decode,
}  # fmt: skip
