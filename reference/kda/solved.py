"""u and w of the chunkwise form, for stages that take them: no other keys and gates belong to random ones.

Float64, each sum in an order of its own that no library chooses, row after row without exchanging any: so what is
exactly zero after a reset stays zero on every machine, where a BLAS leaves noise of its own. Then rounded to bfloat16:
the last bit of an exponential shows in that about once in 10^12 elements.
"""

import numpy as np
from gdnspec.family import Floats
from numpy.typing import NDArray

CHUNK = 64  # tokens; the last chunk of a sequence has what is left


def wy(k: Floats, v: Floats, log_alpha: Floats, beta: Floats, lengths: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """u = T V and w = T (gamma * K), T = (I + A)^-1 diag(beta), of every chunk.

    k [T, num_k_heads, K], v [T, H, V], log_alpha [T, H, K], beta [T, H]. Returns u [T, H, V] and w [T, H, K].
    """
    H = v.shape[1]
    u, w = np.zeros(v.shape), np.zeros((*v.shape[:2], k.shape[2]))
    stop = 0
    for length in lengths.tolist():
        start, stop = stop, stop + length
        for first in range(start, stop, CHUNK):
            t = slice(first, min(first + CHUNK, stop))
            C = t.stop - t.start
            K = np.repeat(k[t], H // k.shape[1], axis=1).transpose(1, 0, 2)  # [H, C, K]
            alpha, write = np.exp(log_alpha[t]).transpose(1, 0, 2), beta[t].T[:, :, None]
            A = np.tril(write * _scores(K, alpha), -1)
            right = write * v[t].transpose(1, 0, 2), write * np.cumprod(alpha, axis=1) * K
            solved = np.concatenate(right, axis=2)
            for row in range(1, C):  # (I + A) X = right, from the top
                for above in range(row):
                    solved[:, row] -= A[:, row, above, None] * solved[:, above]
            solved = solved.transpose(1, 0, 2) + 0.0  # no negative zeros
            u[t], w[t] = solved[:, :, : v.shape[2]], solved[:, :, v.shape[2] :]
    return u, w


def _scores(K: Floats, alpha: Floats) -> Floats:
    """sum_c k_ic Gamma_ijc k_jc where j < i, [H, C, C] of [H, C, K]: one channel after the other."""
    out = np.zeros((*K.shape[:2], K.shape[1]))
    below = np.tril(np.ones((K.shape[1], K.shape[1]), dtype=bool), -1)
    for k, a in zip(K.transpose(2, 0, 1), alpha.transpose(2, 0, 1), strict=True):  # [H, C]
        Gamma = np.cumprod(np.where(below, a[:, :, None], 1.0), axis=1)
        out += k[:, :, None] * Gamma * k[:, None, :]
    return out
