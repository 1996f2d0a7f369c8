"""The regimes of DESIGN: how keys, gates and initial states are drawn. Their names stand in gdnspec.model.regimes.

A regime is described in the natural quantities, log alpha and beta for every (token, head), whatever the definition
stores; gdnspec.inputs.draw turns them into linear, log or raw gates.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.random import Stream
from gdnspec.model.regimes import REGIMES

Floats = NDArray[np.float64]
Keys = Literal["independent", "repeated", "near_parallel", "tiny"]
Values = Literal["independent", "near"]
CHUNK = 64  # resets fall on the edges of chunks of this size, too


@dataclass(frozen=True)
class Layout:
    """Where each token stands: `sequence` [T], `position` in it [T], `lengths` [num_seqs], and the heads."""

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


Gate = Callable[[Stream, Layout], Floats]


@dataclass(frozen=True)
class Regime:
    """`log_alpha` and `beta` give [T, heads]; `state` the magnitude of each sequence's initial state, [num_seqs].

    `log_alpha` None is the Mamba-2 form, which a raw gate reaches by itself.
    """

    log_alpha: Gate | None = None
    beta: Gate | None = None
    beta_max: float = 1.0
    keys: Keys = "independent"
    values: Values = "independent"
    state: Callable[[Layout], Floats] = lambda layout: np.ones(len(layout.lengths))
    rate: float = 1.0  # raw gates: A is this times uniform in (0, 16]


def constant(value: float) -> Gate:
    return lambda stream, layout: np.full(layout.gate_shape, value)


def between(low: float, high: float) -> Gate:
    return lambda stream, layout: stream.between(low, high, *layout.gate_shape)


def mamba(stream: Stream, layout: Layout) -> Floats:
    """log alpha = -A softplus(a + dt_bias): the distribution that models are initialised with."""
    A, dt_bias = mamba_parameters(stream, layout.heads)
    x = stream.normal(*layout.gate_shape) + dt_bias
    return np.asarray(-A * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def mamba_parameters(stream: Stream, heads: int) -> tuple[Floats, Floats]:
    """A uniform in (0, 16] and the bias whose softplus is dt, log-uniform in [1e-3, 1e-1]; [heads] each."""
    A = 16.0 * stream.uniform(heads)
    dt = np.exp(stream.between(np.log(1e-3), np.log(1e-1), heads))
    return A, inverse_softplus(dt)


def inverse_softplus(y: Floats) -> Floats:
    """x with log(1 + exp(x)) = y, for y > 0."""
    return np.asarray(y + np.log(-np.expm1(-y)))


def sigmoid_of_normal(stream: Stream, layout: Layout) -> Floats:
    return 1.0 / (1.0 + np.exp(-stream.normal(*layout.gate_shape)))


def resets(stream: Stream, layout: Layout) -> Floats:
    """Typical decay, with log alpha = -inf at one token in seven and at both edges of chunks."""
    log_alpha = mamba(stream, layout)
    at_random = stream.uniform(*layout.gate_shape) < 1 / 7
    edge = np.isin(layout.position % CHUNK, (0, CHUNK - 1))[:, None]
    # Not every head at every edge: a kernel must get an edge without a reset right as well.
    at_edge = edge & (stream.uniform(*layout.gate_shape) < 0.5)
    log_alpha[at_random | at_edge] = -np.inf
    return log_alpha


def resets_at_once(stream: Stream, layout: Layout) -> Floats:
    """Typical decay, with log alpha = -inf at the first token of every sequence and head."""
    log_alpha = mamba(stream, layout)
    log_alpha[layout.position == 0] = -np.inf
    return log_alpha


def decays_by_eleven(stream: Stream, layout: Layout) -> Floats:
    """log alpha sums to -11 over each sequence, every token taking an equal share."""
    share = -11.0 / np.maximum(layout.lengths, 1)
    return np.broadcast_to(share[layout.sequence][:, None], layout.gate_shape).copy()


def magnitude(value: float) -> Callable[[Layout], Floats]:
    return lambda layout: np.full(len(layout.lengths), value)


def one_large(layout: Layout) -> Floats:
    """The middle sequence large, the others small."""
    sizes = np.full(len(layout.lengths), 1e-2)
    sizes[len(sizes) // 2] = 1e3
    return sizes


GENERATORS: dict[str, Regime] = {
    "typical": Regime(),
    "long_memory": Regime(log_alpha=constant(0.0)),
    "slow_decay": Regime(log_alpha=constant(float(np.log1p(-1e-3)))),
    "fast_decay": Regime(log_alpha=between(-12.0, -2.0)),
    "hard_reset": Regime(log_alpha=resets),
    "repeated_keys": Regime(between(np.log(0.99), 0.0), between(0.0, 1.95), beta_max=1.95, keys="repeated"),
    "near_parallel_keys": Regime(between(np.log(0.99), 0.0), between(0.0, 1.95), beta_max=1.95, keys="near_parallel"),
    # One key, and values near one another: what T adds up cancels, and the rounding of T is what remains of it.
    "strict_keys": Regime(between(np.log(0.999), 0.0), between(1.9, 2.0), beta_max=2.0, keys="repeated", values="near"),
    "beta_zero": Regime(beta=constant(0.0)),
    "beta_one": Regime(beta=constant(1.0)),
    "beta_two": Regime(between(np.log(0.9), 0.0), constant(2.0), beta_max=2.0),
    "large_initial_state": Regime(state=magnitude(100.0)),
    "decayed_large_state": Regime(log_alpha=decays_by_eleven, state=magnitude(3e3)),
    "reset_large_state": Regime(log_alpha=resets_at_once, state=magnitude(1e9)),
    "large_steps": Regime(log_alpha=between(-3.0, -0.1), state=magnitude(100.0), rate=1 / 160),
    "tiny_keys": Regime(keys="tiny"),
    "one_large_state": Regime(log_alpha=between(np.log(0.99), 0.0), state=one_large),
}
assert GENERATORS.keys() == REGIMES.keys()
