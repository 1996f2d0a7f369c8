"""What a forward pass leaves for a backward pass: the states between pieces of a sequence.

Float64, each sum in an order of its own that no library chooses, key channel after key channel, then rounded to
float32: the same on every machine.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from gdnspec.family import Floats
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .draw import Painter


def drawn(painter: "Painter", shape: tuple[int, ...]) -> Floats:
    """The states [num_checkpoints, H, V, K] that a forward pass on the call's other inputs goes through."""
    layout, omit = painter.layout, painter.workload.omit

    def given(name: str, absent: float, like: tuple[int, ...]) -> Floats:
        x = painter.paint(painter.definition.input(name)).values() if name not in omit else np.full(like, absent)
        return x.astype(np.float64)

    alpha, beta = given("g", 1.0, layout.gate_shape), given("beta", 1.0, layout.gate_shape)
    states = given("initial_state", 0.0, (len(layout.lengths), *shape[1:]))
    k, v = given("k", 0.0, ()), given("v", 0.0, ())
    interval = int(painter.workload.scalars["checkpoint_interval"])
    out = np.zeros(shape)
    for row, S in enumerate(states_between(k, v, alpha, beta, states, layout.lengths, interval)):
        out[row] = S
    return out


def states_between(
    k: Floats, v: Floats, alpha: Floats, beta: Floats, states: Floats, lengths: NDArray[np.int64], interval: int
) -> Iterator[Floats]:
    """After every `interval` tokens of each sequence its state [H, V, K].

    k [T, num_k_heads, K], v [T, num_v_heads, V]; alpha and beta [T, H]; states [num_seqs, H, V, K], before the first
    token.
    """
    H = alpha.shape[1]
    stop = 0
    for n, length in enumerate(lengths.tolist()):
        start, stop = stop, stop + length
        S = np.ascontiguousarray(states[n].transpose(2, 0, 1))  # [K, H, V]
        for t in range(start, start + length // interval * interval):
            keys = np.repeat(k[t], H // k.shape[1], axis=0).T[:, :, None]  # [K, H, 1]
            S *= alpha[t, :, None]
            held = np.zeros(S.shape[1:])
            for channel in range(len(S)):
                held += S[channel] * keys[channel]
            S += keys * (beta[t, :, None] * (np.repeat(v[t], H // v.shape[1], axis=0) - held))
            if (t + 1 - start) % interval == 0:
                yield S.transpose(1, 2, 0) + 0.0  # no negative zeros
