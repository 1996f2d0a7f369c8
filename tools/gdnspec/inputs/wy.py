"""u and w of the chunkwise form, for stages that take them: no other keys and gates belong to random ones.

Float64, then rounded to bfloat16: the order of a sum shows in that about once in 10^12 elements.
"""

import numpy as np
from numpy.typing import NDArray

from gdnspec.model.chunks import SIZE

Floats = NDArray[np.float64]


def wy(k: Floats, v: Floats, log_alpha: Floats, beta: Floats, lengths: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """u = T V and w = T diag(gamma) K, T = (I + A)^-1 diag(beta), of every chunk.

    k [T, num_k_heads, K], v [T, H, V], log_alpha and beta [T, H]. Returns u [T, H, V] and w [T, H, K].
    """
    H = v.shape[1]
    u, w = np.zeros(v.shape), np.zeros((*v.shape[:2], k.shape[2]))
    below = np.tril(np.ones((SIZE, SIZE), dtype=bool), -1)
    stop = 0
    for length in lengths.tolist():
        start, stop = stop, stop + length
        for first in range(start, stop, SIZE):
            t = slice(first, min(first + SIZE, stop))
            C = t.stop - t.start
            K = np.repeat(k[t], H // k.shape[1], axis=1).transpose(1, 0, 2)  # [H, C, K]
            alpha, write = np.exp(log_alpha[t]).T, beta[t].T[:, :, None]
            factors = np.where(below[:C, :C], alpha[:, :, None], 1.0)
            Gamma, gamma = np.tril(np.cumprod(factors, axis=1)), np.cumprod(alpha, axis=1)[:, :, None]
            A = np.tril(write * Gamma * (K @ K.transpose(0, 2, 1)), -1)
            right = np.concatenate([write * v[t].transpose(1, 0, 2), write * gamma * K], axis=2)
            solved = np.linalg.solve(np.eye(C) + A, right).transpose(1, 0, 2)
            u[t], w[t] = solved[:, :, : v.shape[2]], solved[:, :, v.shape[2] :]
    return u, w
