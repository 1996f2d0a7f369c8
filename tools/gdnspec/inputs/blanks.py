"""Zeros among drawn values, as padding leaves them: which tokens a batch pads, and rows of zeros in one input."""

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.layout import Layout
from gdnspec.inputs.random import Stream

SHARE = 1 / 4  # of the rows of an input that are zeros besides padding


def tail(layout: Layout) -> NDArray[np.bool_]:
    """The last third of every sequence, rounded down, and one token more of every second sequence; [T]."""
    padded = layout.lengths // 3 + np.arange(len(layout.lengths)) % 2
    return np.asarray(layout.position >= (layout.lengths - padded)[layout.sequence])


def blanked(
    values: NDArray[np.generic], stream: Stream, padding: NDArray[np.bool_] | None = None
) -> NDArray[np.generic]:
    """The values with zeros in one row in four, and in those of padding. `padding`: by token, in the order of the rows;
    None for what has no tokens, such as a norm's weight."""
    rows = len(values) if padding is None else len(padding)  # a batch of draft tokens has two axes
    blank = stream.uniform(rows) < SHARE
    flat = values.reshape(rows, values.size // max(1, rows))
    flat[blank if padding is None else blank | padding] = 0
    return flat.reshape(values.shape)
