"""The regimes of DESIGN: how keys, gates and initial states are drawn. What each is for stands in family.json.

A regime is described in the natural quantities, log alpha and beta for every (token, head), whatever the definition
stores; draw.py turns them into linear, log or raw gates.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from gdnspec.family import Floats, Gate, Layout, Sizes, Stream, tail

from . import regions

Keys = Literal["independent", "repeated", "near_parallel", "tiny"]
Values = Literal["independent", "near"]
CHUNK = 64  # resets fall on the edges of chunks of this size, too


@dataclass(frozen=True)
class Regime:
    """`log_alpha` and `beta` give [T, heads]; `state` the magnitude of each sequence's initial state, [num_seqs], or of
    each sequence and head, [num_seqs, heads]; that is for states of the rule alone, beside which a convolution's are of
    size 1.

    `log_alpha` None is the Mamba-2 form, which a raw gate reaches by itself. `regions`: gates stand in the regions of
    their functions (regions.py), of forgetting or of writing, and are not rounded to the grid of others.
    """

    log_alpha: Gate | None = None
    beta: Gate | None = None
    beta_max: float = 1.0
    keys: Keys = "independent"
    values: Values = "independent"
    state: Sizes = lambda layout: np.ones(len(layout.lengths))
    rate: float = 1.0  # raw gates: A is this times uniform in (0, 16]
    overflow: float = 0.0  # what is added to log A of every second head
    regions: Literal["forget", "write"] | None = None
    cotangents: Literal["all", "one"] = "all"  # at which tokens of a sequence the output has a gradient
    cotangent: float = 1.0  # magnitude of gradients that are given
    codes: Literal["ends", "ties"] | None = (
        None  # states whose codes are all at the ends; new states on ties of rounding
    )
    activation: float = 1.0  # magnitude of what an operator normalises itself: a norm's x, queries and keys
    blank: bool = False  # some tokens are zeros in one input, those of padding in all of them
    steep: float = 1.0  # times the weights of `a`, where a projection inside the operator makes it


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


def steep_at_first(stream: Stream, layout: Layout) -> Floats:
    """Mild decay, with log alpha = -30 at the first token of every sequence and head."""
    log_alpha = mild(stream, layout)
    log_alpha[layout.position == 0] = -30.0
    return log_alpha


def decays_by_eleven(stream: Stream, layout: Layout) -> Floats:
    """log alpha sums to -11 over each sequence, every token taking an equal share."""
    share = -11.0 / np.maximum(layout.lengths, 1)
    return np.broadcast_to(share[layout.sequence][:, None], layout.gate_shape).copy()


def mild(stream: Stream, layout: Layout) -> Floats:
    """log alpha log-uniform in [-0.3, -1e-4]: decay that sums over a chunk notice, and none that ends a memory."""
    return -np.exp(stream.between(np.log(1e-4), np.log(0.3), *layout.gate_shape))


def sparse(stream: Stream, layout: Layout) -> Floats:
    """Mild decay at one token in four of even sequences, at one in two of odd ones; alpha = 1 at all others."""
    share = np.where(layout.sequence % 2, 0.5, 0.25)[:, None]
    log_alpha = mild(stream, layout)
    return np.where(stream.uniform(*layout.gate_shape) < share, log_alpha, 0.0)


def interleaved(stream: Stream, layout: Layout) -> Floats:
    """Mild decay at every second token; heads and sequences take turns in where it begins."""
    turn = (layout.position + layout.sequence)[:, None] + np.arange(layout.heads)
    return np.where(turn % 2 == 0, mild(stream, layout), 0.0)


def decays_before_tails(stream: Stream, layout: Layout) -> Floats:
    return np.where(tail(layout)[:, None], 0.0, mild(stream, layout))


def writes_before_tails(stream: Stream, layout: Layout) -> Floats:
    return np.where(tail(layout)[:, None], 0.0, sigmoid_of_normal(stream, layout))


def decays_in_turn(stream: Stream, layout: Layout) -> Floats:
    """Each sequence has gates of one kind: typical, alpha = 1, resets, alpha = 1 among decay, near 1, near 0."""
    kinds = [mamba, constant(0.0), resets, sparse, constant(float(np.log1p(-1e-3))), between(-12.0, -2.0)]
    each = np.stack([kind(stream, layout) for kind in kinds])
    return np.asarray(each[layout.sequence % len(kinds), np.arange(len(layout.sequence))])


def writes_in_turn(stream: Stream, layout: Layout) -> Floats:
    """Each sequence has betas of one kind: typical of five in eight, and all of them 1, near 0, or 0 of the others."""
    typical = sigmoid_of_normal
    kinds = [typical, constant(1.0), typical, typical, typical, between(0.0, 0.01), typical, constant(0.0)]
    each = np.stack([kind(stream, layout) for kind in kinds])
    return np.asarray(each[layout.sequence % len(kinds), np.arange(len(layout.sequence))])


def sizes_in_turn(layout: Layout) -> Floats:
    """Magnitudes 1, 100 and 0.01, one sequence after the other, every seventh zero."""
    n = np.arange(len(layout.lengths))
    return np.where(n % 7 == 6, 0.0, np.array([1.0, 100.0, 0.01])[n % 3])


def magnitude(value: float) -> Sizes:
    return lambda layout: np.full(len(layout.lengths), value)


def one_large(layout: Layout) -> Floats:
    """The middle sequence large, the others small."""
    sizes = np.full(len(layout.lengths), 1e-2)
    sizes[len(sizes) // 2] = 1e3
    return sizes


def in_even_heads(even: Gate, odd: Gate) -> Gate:
    """One gate in heads 0, 2, .., another in all others."""

    def gate(stream: Stream, layout: Layout) -> Floats:
        return np.where(np.arange(layout.heads) % 2 == 0, even(stream, layout), odd(stream, layout))

    return gate


def every_second(layout: Layout) -> Floats:
    """Magnitude 0 and 1 in turn."""
    return np.arange(len(layout.lengths)) % 2 * 1.0


def vanishing(layout: Layout) -> Floats:
    """Magnitudes 1e-27, 1e-18 and 1e-9, one sequence after the other."""
    return 1e-9 ** (3.0 - np.arange(len(layout.lengths)) % 3)


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
    "replaced_large_state": Regime(log_alpha=constant(0.0), beta=constant(1.0), state=magnitude(100.0)),
    "reset_large_state": Regime(log_alpha=resets_at_once, state=magnitude(1e9)),
    # e^-30 of such a state is as large as what a token writes.
    "steep_at_first": Regime(log_alpha=steep_at_first, state=magnitude(1e13)),
    "large_steps": Regime(log_alpha=between(-3.0, -0.1), state=magnitude(100.0), rate=1 / 160),
    "tiny_keys": Regime(keys="tiny"),
    "large_activations": Regime(activation=1e5),
    "overflowing_rates": Regime(overflow=100.0),
    "blank_tokens": Regime(log_alpha=mild, blank=True),
    "one_large_state": Regime(log_alpha=between(np.log(0.99), 0.0), state=one_large),
    "sparse_gates": Regime(log_alpha=sparse, rate=1 / 160, steep=60.0),
    "interleaved_gates": Regime(log_alpha=interleaved),
    "padded_tails": Regime(log_alpha=decays_before_tails, beta=writes_before_tails),
    "forget_regions": Regime(log_alpha=regions.log_alpha, state=regions.states, regions="forget"),
    "write_regions": Regime(log_alpha=regions.resets_first, beta=regions.betas, regions="write"),
    "in_turn": Regime(log_alpha=decays_in_turn, beta=writes_in_turn, state=sizes_in_turn),
    "zero_states": Regime(beta=in_even_heads(constant(0.0), sigmoid_of_normal), state=every_second),
    "vanishing_states": Regime(log_alpha=mild, beta=in_even_heads(constant(0.0), sigmoid_of_normal), state=vanishing),
    "codes_at_ends": Regime(
        log_alpha=in_even_heads(constant(0.0), between(-2.0, -0.01)),
        beta=in_even_heads(constant(0.0), sigmoid_of_normal),
        codes="ends",
    ),
    "rounding_ties": Regime(beta=constant(1.0), state=magnitude(0.0), codes="ties"),
    "single_cotangent": Regime(log_alpha=mild, cotangents="one"),
    "tiny_cotangents": Regime(cotangent=1e-4 * 2.0**-17),
    "huge_cotangents": Regime(cotangent=1e4 * 2.0**10),
}
