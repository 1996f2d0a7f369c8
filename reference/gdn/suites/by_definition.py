"""Which definition has which rows."""

from functools import partial
from itertools import chain

from gdnspec.family import SuiteError

from .backward import BACKWARD, far_backward
from .backward_around import CONV_BACKWARD, LAYER_BACKWARD, NORM_BACKWARD, RAW
from .backward_residuals import RESIDUALS, far_residuals
from .blank import BLANK
from .checkpoints import CHECKPOINTS
from .commit import COMMIT
from .conv_gates import CONV_GATES
from .conv_gates_backward import CONV_GATES_BACKWARD
from .conv_trees import CONV_TREE
from .conv_verify import CONV_VERIFY
from .convolution import CONVOLUTION, CONVOLUTION_DECODE
from .core_decode import CORE_DECODE
from .decode import DECODE, VARIANT
from .drafts import DRAFTS
from .edges import EDGES, WINDOWS
from .equal import EQUAL
from .far import (
    far_checkpoints,
    far_commit,
    far_conv_tree,
    far_conv_verify,
    far_convolution,
    far_core_decode,
    far_decode,
    far_drafts,
    far_edges,
    far_from_conv,
    far_layer,
    far_layer_decode,
    far_norm,
    far_padded,
    far_pool,
    far_prefill,
    far_prefill_pool,
    far_stage,
    far_states_of_convolution,
    far_states_of_convolution_decode,
    far_tree,
    far_verify,
    far_windows,
    far_wy,
)
from .from_conv import FROM_CONV, FROM_CONV_F32, from_conv
from .kv_dims import KV_DECODE, KV_PREFILL
from .kv_dims_slots import KV_POOL, KV_VERIFY
from .layer import LAYER, LAYER_DECODE
from .line import Rows
from .many import (
    many_checkpoints,
    many_convolution,
    many_convolution_decode,
    many_decode,
    many_edges,
    many_layer,
    many_layer_decode,
    many_pool,
    many_prefill,
    many_verify,
    many_windows,
)
from .neg_eigval import NEG_LAYER, NEG_LAYER_DECODE
from .norm import NORM
from .padded import PADDED
from .pool import POOL
from .prefill import PREFILL, prefill
from .prefill_pool import PREFILL_POOL, PREFILL_SLOT_ZERO, of_slot_zero
from .quantised import QUANTISED_POOL, QUANTISED_VERIFY
from .short import short_checkpoints, short_prefill
from .stages import stages, wy_strict
from .trees import TREE
from .verify import VERIFY

Suites = dict[str, Rows]

TWO_SIZES: dict[str, Suites] = {
    "gdn_prefill_k_last_kv_dims": KV_PREFILL,
    "gdn_decode_k_last_kv_dims": KV_DECODE,
    "gdn_decode_pool_k_last_kv_dims": KV_POOL,
    "gdn_verify_k_last_kv_dims": KV_VERIFY,
    "gdn_layer_prefill_neg_eigval": NEG_LAYER,
    "gdn_layer_decode_neg_eigval": NEG_LAYER_DECODE,
}
# What a definition's rows are made like.
KINDS: dict[str, Suites] = {
    "gdn_prefill_k_last": PREFILL, "gdn_prefill_k_first": PREFILL,
    "gdn_prefill_padded_k_first": PADDED,
    "gdn_prefill_checkpoints": CHECKPOINTS, "gdn_prefill_checkpoints_absolute": EDGES,
    "gdn_conv1d_checkpoints_absolute": WINDOWS,
    "gdn_prefill_pool_k_last_slot_zero": PREFILL_SLOT_ZERO,
    "gdn_prefill_pool_k_last": PREFILL_POOL, "gdn_prefill_pool_k_last_bf16_state": PREFILL_POOL,
    "gdn_prefill_backward_k_last": BACKWARD, "gdn_prefill_backward_k_first": BACKWARD,
    "gdn_prefill_backward_checkpoints": RESIDUALS,
    "gdn_prefill_backward_raw_gates": RAW, "gdn_gated_rms_norm_backward": NORM_BACKWARD,
    "gdn_conv1d_backward": CONV_BACKWARD, "gdn_layer_backward": LAYER_BACKWARD,
    "gdn_conv_gates_backward": CONV_GATES_BACKWARD,
    "gdn_decode_k_last": DECODE, "gdn_decode_k_first": DECODE,
    "gdn_decode_k_last_bf16_state": VARIANT, "gdn_decode_k_first_bf16_state": VARIANT,
    "gdn_decode_packed_k_last": VARIANT,
    "gdn_decode_pool_k_last": POOL, "gdn_decode_pool_k_last_bf16_state": POOL,
    "gdn_verify_k_last": VERIFY,
    "gdn_commit_states_k_last": COMMIT, "gdn_commit_states_k_last_bf16_state": COMMIT,
    "gdn_verify_tree_k_last": TREE, "gdn_verify_tree_k_last_bf16_state": TREE,
    "gdn_verify_drafts_k_last": DRAFTS, "gdn_verify_drafts_k_last_bf16_state": DRAFTS,
    "gdn_decode_pool_k_last_fp8_state": QUANTISED_POOL, "gdn_decode_pool_k_last_int8_state": QUANTISED_POOL,
    "gdn_verify_k_last_fp8_state": QUANTISED_VERIFY, "gdn_verify_k_last_int8_state": QUANTISED_VERIFY,
    "gdn_conv1d_prefill": CONVOLUTION, "gdn_conv1d_decode": CONVOLUTION_DECODE,
    "gdn_conv1d_verify": CONV_VERIFY, "gdn_conv1d_verify_tree": CONV_TREE,
    "gdn_conv_gates_prefill": CONV_GATES,
    "gdn_gated_rms_norm": NORM,
    "gdn_layer_prefill": LAYER, "gdn_layer_decode": LAYER_DECODE,
    "gdn_core_decode": CORE_DECODE,
    "gdn_prefill_from_conv": FROM_CONV, "gdn_prefill_from_conv_bf16_state": FROM_CONV,
    "gdn_prefill_from_conv_f32_qkv": FROM_CONV_F32, "gdn_prefill_from_conv_f32_qkv_bf16_state": FROM_CONV_F32,
    "gdn_chunk_wy": stages(False) | {"strict": wy_strict}, "gdn_chunk_state": stages(True, of_state=True),
    "gdn_chunk_output": stages(True, scaled=True),
    **TWO_SIZES,
}  # fmt: skip

STATES = ("", "_bf16_state")
OF_DECODE = ("k_last", "k_first", "k_last_bf16_state", "k_first_bf16_state", "packed_k_last", "k_last_kv_dims")
OF_POOL = (*STATES, "_kv_dims")
OF_CONV = tuple(f"{rows}{state}" for state in STATES for rows in ("", "_f32_qkv"))
# Rows of the conformance suite beyond those: many pairs of a sequence and a head, many short sequences, many elements.
BESIDE: dict[str, tuple[Rows, ...]] = {
    **dict.fromkeys(
        ("gdn_prefill_k_last", "gdn_prefill_k_first", "gdn_prefill_k_last_kv_dims"),
        (partial(many_prefill, prefill), partial(short_prefill, prefill), far_prefill),
    ),
    **dict.fromkeys((f"gdn_decode_{name}" for name in OF_DECODE), (many_decode, far_decode)),
    **dict.fromkeys((f"gdn_decode_pool_k_last{name}" for name in OF_POOL), (many_pool, far_pool)),
    **dict.fromkeys((f"gdn_decode_pool_k_last_{codes}_state" for codes in ("fp8", "int8")), (many_pool, far_pool)),
    **dict.fromkeys((f"gdn_verify_k_last_{codes}_state" for codes in ("fp8", "int8")), (far_verify,)),
    **dict.fromkeys(
        (f"gdn_prefill_from_conv{name}" for name in OF_CONV), (partial(many_prefill, from_conv), far_from_conv)
    ),
    **dict.fromkeys(("gdn_verify_k_last", "gdn_verify_k_last_kv_dims"), (many_verify, far_verify)),
    **dict.fromkeys(("gdn_chunk_state", "gdn_chunk_output"), (far_stage,)),
    **dict.fromkeys(("gdn_layer_decode", "gdn_layer_decode_neg_eigval"), (many_layer_decode, far_layer_decode)),
    **dict.fromkeys((f"gdn_prefill_backward_{layout}" for layout in ("k_last", "k_first")), (far_backward,)),
    "gdn_prefill_backward_checkpoints": (far_residuals,),
    "gdn_prefill_checkpoints": (many_checkpoints, short_checkpoints, far_checkpoints),
    "gdn_conv1d_prefill": (many_convolution, partial(far_convolution, "bias"), far_states_of_convolution),
    "gdn_conv1d_decode": (many_convolution_decode, far_states_of_convolution_decode),
    **dict.fromkeys((f"gdn_commit_states_k_last{state}" for state in STATES), (far_commit,)),
    **dict.fromkeys((f"gdn_verify_drafts_k_last{state}" for state in STATES), (far_drafts,)),
    **dict.fromkeys((f"gdn_prefill_pool_k_last{state}" for state in STATES), (far_prefill_pool,)),
    "gdn_prefill_pool_k_last_slot_zero": (of_slot_zero(far_prefill_pool),),
    **dict.fromkeys((f"gdn_verify_tree_k_last{state}" for state in STATES), (far_tree,)),
    "gdn_conv1d_verify": (far_conv_verify,),
    "gdn_conv1d_verify_tree": (far_conv_tree,),
    "gdn_prefill_padded_k_first": (far_padded,),
    "gdn_prefill_checkpoints_absolute": (many_edges, far_edges),
    "gdn_conv1d_checkpoints_absolute": (many_windows, far_windows),
    "gdn_conv_gates_prefill": (many_convolution, partial(far_convolution, "conv_bias"), far_states_of_convolution),
    "gdn_gated_rms_norm": (many_decode, far_norm),
    "gdn_layer_prefill": (many_layer, far_layer),
    # Of 66,048 pairs, each written with up to twice its error, one is always rounded too far for a budget.
    "gdn_layer_prefill_neg_eigval": (far_layer,),
    "gdn_core_decode": (many_layer_decode, far_core_decode),
    "gdn_chunk_wy": (far_wy,),
}


def suites(name: str) -> Suites:
    """All rows of a definition that are written by hand, but for those of strides."""
    if name not in KINDS:
        raise SuiteError("no rows: name it in KINDS of suites/by_definition.py")
    kind, more = KINDS[name], (*BESIDE.get(name, ()), *(rows[name] for rows in (BLANK, EQUAL) if name in rows))
    return kind | {"conformance": lambda: chain.from_iterable(rows() for rows in (kind["conformance"], *more))}
