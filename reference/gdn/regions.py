"""Regions of the gate functions: where each underflows, is curved, is linear in its argument, saturates.

Every first token of a sequence stands in the region that its (sequence, head) chooses, one after the other. What a
small gate leaves must still be seen. So a state is as large as its gate is small, and later tokens go on to the regions
that follow (forgetting); or the state is reset, and all tokens of the sequence write alike (writing).
"""

import numpy as np
from gdnspec.family import Floats, Layout, Stream

# log alpha: float32 is normal down to -87.3, subnormal to -103.97; float64 ends at -745.1. At -82 what a gate leaves of
# a key is still normal in bfloat16 as well.
LOG_ALPHAS = (
    -1e-3, -20.5, -60.5, -1.0, -80.0, -8.5, -30.0, -82.0, 0.0, -14.0, -45.0, -100.0, -104.0, -110.0, -745.0, -np.inf,
)  # fmt: skip
# Arguments of the softplus, for one head after the other, and the rate A at which alpha says something of each:
# where exp(x) has to be told from x; where 1 + exp(x) rounds to 1; where softplus is x; where exp(x) overflows.
RAW: tuple[tuple[float, tuple[float, ...]], ...] = (
    (8.0, (8.1, 0.0, 9.0, 5.0, -1.0, 7.5, 3.0, 10.0, 1.0)),
    (float(np.exp(14.0)), (-13.0, -17.0, -11.0, -20.5, -15.0, -60.0, -14.0, -88.0, -100.0)),
    (1.0, (2.0, 21.0, -4.0, 10.0, 60.0, 15.0, 40.0, 80.0, 20.0)),
    (1 / 16, (100.0, 25.0, 400.0, 89.0, 30.0, 1000.0, 8.1, 50.0, -8.0)),
)
# beta, and the logit that a sigmoid has it from. Below 1e-30 what a write leaves would no longer be a normal number.
BETAS = (1e-5, 1.0, 1e-20, 0.5, 1e-10, 1 - 1e-3, 1e-30, 0.1, 0.0, 3e-4, 1e-3, 1e-15)
LOGITS = (-8.0, 2.0, -60.0, -20.0, 88.0, -5.0, -30.0, 0.0, 5.0, -10.0, -128.0, 20.0, -2.0, -45.0, 10.0, 128.0)
SILUS = (-8.0, 1.0, -60.0, 20.0, -1.0, -20.0, 5.0, -30.0, 90.0, -2.0, -10.0, 8.0, -80.0, 0.5)  # of an output gate

LARGEST = 1e36  # of a state: a sum of its products with a key of norm one stays a float32
VISIBLE = 100.0  # what is left of a state beside values of size 1


def region(layout: Layout, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The region of each token and head, [T, heads]."""
    return np.asarray((layout.sequence + layout.position)[:, None] + 5 * np.arange(layout.heads)) % count


def log_alpha(stream: Stream, layout: Layout) -> Floats:
    return np.array(LOG_ALPHAS)[region(layout, len(LOG_ALPHAS))]


def raw_rates(heads: int) -> Floats:
    """A of each head."""
    return np.array([RAW[head % len(RAW)][0] for head in range(heads)])


def raw_arguments(layout: Layout) -> Floats:
    """What the softplus is taken of, [T, heads]."""
    rows = (layout.sequence + layout.position) % len(RAW[0][1])
    return np.stack([np.array(RAW[head % len(RAW)][1])[rows] for head in range(layout.heads)], axis=-1)


def raw_log_alpha(layout: Layout) -> Floats:
    x = raw_arguments(layout)
    return np.asarray(-raw_rates(layout.heads) * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def _of_first_tokens(layout: Layout, log: Floats, largest: float) -> Floats:
    """Magnitudes [num_seqs, heads] at which each first token leaves about `VISIBLE` of a state."""
    sizes = np.ones((len(layout.lengths), layout.heads))
    first = layout.position == 0
    # float64 ends at e^709; what is past `largest` is cut anyway.
    sizes[layout.sequence[first]] = np.minimum(VISIBLE * np.exp(np.minimum(-log[first], 700.0)), largest)
    return sizes


def states(layout: Layout) -> Floats:
    return _of_first_tokens(layout, np.array(LOG_ALPHAS)[region(layout, len(LOG_ALPHAS))], LARGEST)


def states_of_raw(layout: Layout, largest: float = LARGEST) -> Floats:
    return _of_first_tokens(layout, raw_log_alpha(layout), largest)


def region_of_sequence(layout: Layout, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The region of each sequence and head, for each of its tokens, [T, heads]."""
    return np.asarray(layout.sequence[:, None] + 5 * np.arange(layout.heads)) % count


def betas(stream: Stream, layout: Layout) -> Floats:
    return np.asarray(np.array(BETAS)[region_of_sequence(layout, len(BETAS))])


def logits(layout: Layout) -> Floats:
    return np.asarray(np.array(LOGITS)[region_of_sequence(layout, len(LOGITS))])


def resets_first(stream: Stream, layout: Layout) -> Floats:
    """log alpha: -inf at every first token, ordinary after it."""
    out = stream.between(-1.0, -1e-2, *layout.gate_shape)
    out[layout.position == 0] = -np.inf
    return out


def silu_levels(rows: int, heads: int) -> Floats:
    """The level around which the output gate of each row and head lies, [rows, heads]."""
    return np.asarray(np.array(SILUS)[(np.arange(rows)[:, None] + 5 * np.arange(heads)) % len(SILUS)])
