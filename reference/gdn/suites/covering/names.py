"""Names of gated delta net that suites go by."""

from gdnspec.family import Definition

INTERVAL = "checkpoint_interval"  # a scalar input: tokens from one checkpoint of a sequence to the next
CHECKPOINTS, CHUNKS = "num_checkpoints", "num_chunks"  # axes
SLOTS = "num_slots"  # an axis
CHUNK = 64  # tokens
# Gradients of what stands around the rule, states that are quantised, and padded batches. Conditions meet in the rows
# of prefill's gradients, of the forward definitions, of float32 states and of packed batches; here each has a row of
# its own, by hand.
BY_HAND = {
    "gdn_prefill_backward_checkpoints",
    "gdn_prefill_backward_raw_gates", "gdn_gated_rms_norm_backward", "gdn_conv1d_backward", "gdn_layer_backward",
    "gdn_conv_gates_backward",
    "gdn_decode_pool_k_last_fp8_state", "gdn_decode_pool_k_last_int8_state",
    "gdn_verify_k_last_fp8_state", "gdn_verify_k_last_int8_state", "gdn_prefill_padded_k_first",
}  # fmt: skip


def keeps_checkpoints(definition: Definition) -> bool:
    return any(axis.name == CHECKPOINTS for axis in definition.axes)


def takes_rows_behind(definition: Definition) -> bool:
    """Whether packed tensors may have rows behind the last sequence."""
    return any(constraint.expression == "total_seq_len >= cu_seqlens[-1]" for constraint in definition.constraints)


def padding(definition: Definition) -> int:
    """The slot of what is skipped. Real slots are larger."""
    return 0 if definition.conventions.padding_slot == "zero" else -1


def counts_chunks(definition: Definition) -> bool:
    return any(axis.name == CHUNKS for axis in definition.axes)
