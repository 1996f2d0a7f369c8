"""How keys, gates and initial states are drawn. What each regime is for stands in family.json.

A regime is described in natural quantities, log alpha for every (token, head, key channel) and beta for every (token,
head), whatever the definition stores; draw.py turns them into log or raw gates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gdnspec.family import Floats, Gate, Layout, Sizes, Stream

Keys = Literal["independent", "repeated", "tiny"]
Values = Literal["independent", "near"]
Decay = Callable[[Stream, Layout, int], Floats]  # [T, heads, K]
CHUNK = 16  # resets fall on the edges of chunks of this size, and so of larger ones
LOWER_BOUND = -5.0  # of released models
DEPTHS = (-1e-3, -1e-2, -0.5, -4.0, -10.0, -22.0, -40.0, -60.0, -80.0)  # of log alpha; states up to e^80 in float32
AT_ONCE = -30.0  # a decay that leaves nothing in bfloat16, and is no reset


@dataclass(frozen=True)
class Regime:
    """`log_alpha` None is the Mamba-2 form, which a raw gate reaches by itself; `beta` None a sigmoid of a normal.
    `state`: the magnitude of each sequence's initial state, [num_seqs]. `cotangent`: that of gradients of outputs,
    which one token of a sequence alone has where `one_cotangent`."""

    log_alpha: Decay | None = None
    beta: Gate | None = None
    beta_max: float = 1.0
    keys: Keys = "independent"
    values: Values = "independent"
    rate: float = 1.0  # raw gates: A is this times uniform in (0, 16]
    state: Sizes = lambda layout: np.ones(len(layout.lengths))
    steps: tuple[float, float] = (1e-3, 1e-1)  # raw gates: the softplus of a bias is log-uniform between these
    steep: float = 1.0  # times the weights that make raw decay gates, where a projection inside the operator does
    cotangent: float = 1.0
    one_cotangent: bool = False
    blank: bool = False  # some tokens are zeros in one input, those of padding in all of them


def constant(value: float) -> Decay:
    return lambda stream, layout, K: np.full((*layout.gate_shape, K), value)


def between(low: float, high: float) -> Decay:
    return lambda stream, layout, K: stream.between(low, high, *layout.gate_shape, K)


def mamba(stream: Stream, layout: Layout, K: int) -> Floats:
    """log alpha = -A softplus(a + dt_bias): the distribution that models are initialised with."""
    A, dt_bias = mamba_parameters(stream, layout.heads, K)
    x = stream.normal(*layout.gate_shape, K) + dt_bias
    return np.asarray(-A[:, None] * (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))))


def mamba_parameters(
    stream: Stream, heads: int, K: int, steps: tuple[float, float] = Regime.steps
) -> tuple[Floats, Floats]:
    """A [heads] uniform in (0, 16], and the bias [heads, K] whose softplus is dt, log-uniform between `steps`."""
    A = 16.0 * stream.uniform(heads)
    return A, inverse_softplus(np.exp(stream.between(np.log(steps[0]), np.log(steps[1]), heads, K)))


def inverse_softplus(y: Floats) -> Floats:
    """x with log(1 + exp(x)) = y, for y > 0."""
    return np.asarray(y + np.log(-np.expm1(-y)))


def sigmoid_of_normal(stream: Stream, layout: Layout) -> Floats:
    return 1.0 / (1.0 + np.exp(-stream.normal(*layout.gate_shape)))


def resets(stream: Stream, layout: Layout, K: int) -> Floats:
    """Mild decay, with log alpha = -inf of one channel in seven, and of half of them at both edges of chunks; at one
    token in eleven of all channels together."""
    log_alpha = mild(stream, layout, K)
    at_random = stream.uniform(*layout.gate_shape, K) < 1 / 7
    edge = np.isin(layout.position % CHUNK, (0, CHUNK - 1))[:, None, None]
    at_edge = edge & (stream.uniform(*layout.gate_shape, K) < 0.5)
    whole = (stream.uniform(*layout.gate_shape) < 1 / 11)[..., None]
    log_alpha[at_random | at_edge | whole] = -np.inf
    return log_alpha


def mild(stream: Stream, layout: Layout, K: int) -> Floats:
    """log alpha log-uniform in [-0.3, -1e-4]: decay that sums over a chunk notice, and none that ends a memory."""
    return -np.exp(stream.between(np.log(1e-4), np.log(0.3), *layout.gate_shape, K))


def mixed_channels(stream: Stream, layout: Layout, K: int) -> Floats:
    """Of four channels in a row, one never forgets, one forgets at once, and two decay mildly."""
    log_alpha, channel = mild(stream, layout, K), np.arange(K) % 4
    return np.where(channel == 0, 0.0, np.where(channel == 1, AT_ONCE, log_alpha))


def equal_channels(stream: Stream, layout: Layout, K: int) -> Floats:
    """Mild decay, the same in all channels of a head: gated delta net."""
    return np.repeat(mild(stream, layout, 1), K, axis=2)


def at_lower_bound(stream: Stream, layout: Layout, K: int) -> Floats:
    """Half of the gates at the lower bound of released models, the others anywhere above it."""
    reached = stream.uniform(*layout.gate_shape, K) < 0.5
    return np.where(reached, LOWER_BOUND, stream.between(LOWER_BOUND, 0.0, *layout.gate_shape, K))


def decays_by_eleven(stream: Stream, layout: Layout, K: int) -> Floats:
    """log alpha sums to -11 over each sequence, every token taking an equal share."""
    share = -11.0 / np.maximum(layout.lengths, 1)
    return np.broadcast_to(share[layout.sequence][:, None, None], (*layout.gate_shape, K)).copy()


def each_depth(stream: Stream, layout: Layout, K: int) -> Floats:
    """Log alpha about one of the depths, another one for each sequence."""
    depth = np.array(DEPTHS)[layout.sequence % len(DEPTHS)]
    return depth[:, None, None] * stream.between(0.98, 1.0, *layout.gate_shape, K)


def of_each_depth(layout: Layout) -> Floats:
    """States that a decay of this depth brings to a magnitude of one."""
    return np.exp(-np.array(DEPTHS)[np.arange(len(layout.lengths)) % len(DEPTHS)])


def of_deep_steps(layout: Layout) -> Floats:
    """Magnitudes e^12, e^26 and e^45, one sequence after the other."""
    return np.exp(np.array([12.0, 26.0, 45.0])[np.arange(len(layout.lengths)) % 3])


def write(low: float, high: float) -> Gate:
    return lambda stream, layout: stream.between(low, high, *layout.gate_shape)


def magnitude(value: float) -> Sizes:
    return lambda layout: np.full(len(layout.lengths), value)


def one_large(layout: Layout) -> Floats:
    """The middle sequence large, the others small."""
    sizes = np.full(len(layout.lengths), 1e-2)
    sizes[len(sizes) // 2] = 1e3
    return sizes


GENERATORS: dict[str, Regime] = {
    "typical": Regime(),
    "mild_decay": Regime(log_alpha=mild),
    "long_memory": Regime(log_alpha=constant(0.0)),
    "fast_decay": Regime(log_alpha=between(-12.0, -2.0)),
    "deep_sums": Regime(log_alpha=between(-12.0, -6.0)),
    "slow_deep_sums": Regime(log_alpha=between(-2.5, -1.5)),
    "hard_reset": Regime(log_alpha=resets),
    "mixed_channels": Regime(log_alpha=mixed_channels, steep=3.0),
    "equal_channels": Regime(log_alpha=equal_channels),
    "lower_bound": Regime(log_alpha=at_lower_bound),
    "repeated_keys": Regime(between(float(np.log(0.99)), 0.0), write(0.0, 1.95), beta_max=1.95, keys="repeated"),
    # One key, and values near one another: what T adds up cancels, and the rounding of T is what remains of it.
    "strict_keys": Regime(
        between(float(np.log(0.999)), 0.0), write(1.9, 2.0), beta_max=2.0, keys="repeated", values="near"
    ),
    "same_key": Regime(between(float(np.log(0.99)), 0.0), write(0.0, 1.0), keys="repeated"),
    "beta_zero": Regime(beta=write(0.0, 0.0)),
    "beta_two": Regime(between(float(np.log(0.9)), 0.0), write(2.0, 2.0), beta_max=2.0),
    "large_initial_state": Regime(log_alpha=mild, state=magnitude(100.0)),
    "decayed_large_state": Regime(log_alpha=decays_by_eleven, state=magnitude(3e3)),
    "replaced_large_state": Regime(log_alpha=constant(0.0), beta=write(1.0, 1.0), state=magnitude(100.0)),
    "one_large_state": Regime(log_alpha=mild, state=one_large),
    "every_depth": Regime(log_alpha=each_depth, state=of_each_depth),
    "large_steps": Regime(log_alpha=between(-3.0, -0.1), rate=1 / 160, steep=50.0),
    "deep_steps": Regime(rate=2.0, steps=(1.9, 2.0), steep=0.02, state=of_deep_steps),
    "tiny_keys": Regime(log_alpha=mild, keys="tiny"),
    "blank_tokens": Regime(log_alpha=mild, blank=True),
    "single_cotangent": Regime(log_alpha=mild, one_cotangent=True),
    "tiny_cotangents": Regime(log_alpha=mild, cotangent=1e-4 * 2.0**-17),
    "huge_cotangents": Regime(log_alpha=mild, cotangent=1e4 * 2.0**10),
}
