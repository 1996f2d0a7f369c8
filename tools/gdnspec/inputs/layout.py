"""The position of each token of a workload, and the types of the functions that make up a regime."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.random import Stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """The `sequence` [T] of each token, its `position` in the sequence [T], the `lengths` [num_seqs], and the heads."""

    lengths: NDArray[np.int64]
    heads: int
    sequence: NDArray[np.int64] = field(init=False)
    position: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        sequence = np.repeat(np.arange(len(self.lengths), dtype=np.int64), self.lengths)
        object.__setattr__(self, "sequence", sequence)
        object.__setattr__(self, "position", np.arange(len(sequence), dtype=np.int64) - starts[sequence])

    @property
    def gate_shape(self) -> tuple[int, int]:
        return len(self.sequence), self.heads


Gate = Callable[[Stream, Layout], Floats]  # [T, heads]
Sizes = Callable[[Layout], Floats]  # [num_seqs], or [num_seqs, heads]
