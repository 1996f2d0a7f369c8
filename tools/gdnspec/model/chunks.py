"""Chunks: the pieces of 64 tokens that the chunkwise form cuts sequences into, and how what there is of each lies.

The names here carry meaning, as those of checkpoints do: a definition that takes `STARTS` has them worked out from the
lengths of its sequences.
"""

from collections.abc import Sequence
from itertools import accumulate

from gdnspec.model.definition import Definition

SIZE = 64  # tokens; the last chunk of a sequence has what is left
STARTS = "chunk_cu_starts"  # an input: sequence n has chunks STARTS[n] to STARTS[n + 1]
COUNT = "num_chunks"  # the axis: of all sequences together


def counts_chunks(definition: Definition) -> bool:
    """Whether it has something of every chunk."""
    return any(tensor.name == STARTS for tensor in definition.inputs)


def starts(lengths: Sequence[int]) -> list[int]:
    """[sequences + 1]: ceil(length / 64) chunks a sequence, counted up."""
    return [0, *accumulate(-(-length // SIZE) for length in lengths)]
