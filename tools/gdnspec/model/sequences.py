"""Where the sequences of a ragged batch lie: the input that bounds them, whatever a definition calls it."""

from gdnspec.model.definition import Definition

NAMES = ("cu_seqlens", "row_offsets")  # each means: sequence n is rows [n] to [n + 1] of the packed tensors
TOKENS = "total_seq_len"  # the axis of packed tokens


def bounds(definition: Definition) -> str | None:
    """The name of that input; None where there is none."""
    return next((tensor.name for tensor in definition.inputs if tensor.name in NAMES), None)
