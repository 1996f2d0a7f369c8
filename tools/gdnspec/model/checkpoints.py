"""Checkpoints: the states that a prefill keeps of each sequence, one after every so many tokens, and how they lie.

The names here carry meaning, as those of other axes do: a definition that takes `INTERVAL` and `STARTS` has its starts
worked out from the lengths of its sequences.
"""

from collections.abc import Sequence
from itertools import accumulate

from gdnspec.model.definition import Definition

INTERVAL = "checkpoint_interval"  # a scalar input: tokens from one checkpoint of a sequence to the next
STARTS = "checkpoint_cu_starts"  # an input: sequence n has checkpoints STARTS[n] to STARTS[n + 1]
COUNT = "num_checkpoints"  # the axis: of all sequences together
MULTIPLE = 64  # of which an interval is one: what kernels call a chunk


def keeps_checkpoints(definition: Definition) -> bool:
    return any(tensor.name == INTERVAL for tensor in definition.inputs)


def starts(lengths: Sequence[int], interval: int) -> list[int]:
    """[sequences + 1]: floor(length / interval) states a sequence, counted up. `interval` is positive."""
    return [0, *accumulate(length // interval for length in lengths)]
