"""The gradients of prefill by chunks, from the chunkwise equations of the forward pass and not from the recurrence.

One chunk of C tokens of one head, in the notation of chunkwise.py; S is the state at its start, `*` is by channels:

    QK_ij = sum_c q_ic Gamma_ijc k_jc (i >= j),   KK the same of k_i and k_j (i > j),   M = (I + diag(beta) KK)^-1
    R = V - (gamma * K) S^T,      U = M diag(beta) R
    O = scale ((gamma * Q) S^T + QK U),      S_end = S Diag(gamma_C) + U^T (Gamma_C,: * K)

Let G = scale dO, and D the gradient of S_end. Differentiating each equation gives

    dU = QK^T G + (Gamma_C,: * K) D^T               X = M^T dU              dV = dR = diag(beta) X
    dS = D Diag(gamma_C) + G^T (gamma * Q) - dR^T (gamma * K)
    P = lower(G U^T),      B = -diag(beta) strict_lower(X U^T)      (of QK and of KK; dM = -M^T dA M^T)
    dQ_i = gamma_i * (G S)_i + sum_j P_ij Gamma_ij * k_j
    dK_i = Gamma_Ci * (U D)_i - gamma_i * (dR S)_i
           + sum_j B_ij Gamma_ij * k_j + sum_j Gamma_ji * (P_ji q_j + B_ji k_j)
    dbeta_i = X_i . (R - KK U)_i

and gates are reached through Gamma and gamma alone, each a product of decays. With the logarithm of a decay as its
gate, dg_t is the sum of what has alpha_t for a factor, and nothing is divided:

    dg_t = sum over i >= t of (gamma_i * dgamma_i + sum over j < t of Gamma_ij * dGamma_ij)
    dGamma_ij = (P_ij q_i + B_ij k_i) * k_j, for i = C also k_j * (U D)_j
    dgamma_i = q_i * (G S)_i - k_i * (dR S)_i, for i = C also the sum over rows of D * S

The function takes and returns what its namesake in backward.py does. In float64 the two agree to 1e-10.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .backward import Gradients, fold_heads
from .chunkwise import decay_ratios
from .kimi_delta_attention import arithmetic_type, default_scale, expand_heads

Stored = Callable[[Tensor], Tensor]


def as_it_is(x: Tensor) -> Tensor:
    """What the walks leave for the kernels behind them may be stored in 16 bits. Here it is not."""
    return x


class Chunk(NamedTuple):
    """One chunk and what its forward pass leaves: Q, K, alpha [H, C, K]; V, G, R, U [H, C, V]; beta [H, C, 1]."""

    Q: Tensor
    K: Tensor
    V: Tensor
    alpha: Tensor
    beta: Tensor
    G: Tensor  # scale dO
    S: Tensor  # at its start, [H, V, K]
    M: Tensor  # [H, C, C]
    R: Tensor
    U: Tensor


def scores(X: Tensor, K: Tensor, Gamma: Tensor) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc: [H, C, C]. Half of the decay goes to either token, so that where operands are rounded
    both are, as on both sides of a border."""
    root = Gamma.sqrt()
    return ((X[:, :, None] * root)[..., None, :] @ (K[:, None] * root)[..., None])[..., 0, 0]


def weighed(weights: Tensor, vectors: Tensor) -> Tensor:
    """sum_j weights_ij vectors_ij: [H, C, K] from [H, C, C] and [H, C, C, K]."""
    return (weights[:, :, None] @ vectors)[:, :, 0]


def forward(Q: Tensor, K: Tensor, V: Tensor, alpha: Tensor, beta: Tensor, G: Tensor, S: Tensor) -> tuple[Chunk, Tensor]:
    """The chunk, and the state at its end."""
    Gamma, gamma = decay_ratios(alpha)
    eye = torch.eye(len(V[0]), dtype=V.dtype, device=V.device).expand(len(V), -1, -1)
    A = beta * scores(K, K, Gamma).tril(-1)
    M = torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
    R = V - (gamma * K) @ S.mT
    U = M @ (beta * R)
    after = S * gamma[:, -1:] + U.mT @ (Gamma[:, -1] * K)
    return Chunk(Q, K, V, alpha, beta, G, S, M, R, U), after


def backward(c: Chunk, D: Tensor, first: bool, last: bool, stored: Stored) -> Gradients:
    """dQ, dK, dV, dg [H, C, ..], dbeta [H, C] and dS, from D, the gradient of the state at the end, [H, V, K]. `first`,
    `last`: of its sequence. The states there are given, and all others go from kernel to kernel."""
    Q, K, beta = c.Q, c.K, c.beta
    S = c.S if first else stored(c.S)
    end = D if last else stored(D)
    Gamma, gamma = decay_ratios(c.alpha)
    KK, QK, to_end = scores(K, K, Gamma).tril(-1), scores(Q, K, Gamma), Gamma[:, -1]
    X = c.M.mT @ (QK.mT @ c.G + (to_end * K) @ D.mT)
    dR = beta * X
    X, unweighted = stored(X), stored(c.R - KK @ c.U)
    P, B = (c.G @ c.U.mT).tril(), -beta * (X @ c.U.mT).tril(-1)
    read_q, read_k, written = c.G @ S, dR @ S, c.U @ end  # [H, C, K]

    later = Gamma * K[:, None]  # [H, i, j, K]: key j as token i meets it
    dQ = gamma * read_q + weighed(P, later)
    dK = to_end * written - gamma * read_k + weighed(B, later)
    dK = dK + weighed(P.mT, (Gamma * Q[:, :, None]).transpose(1, 2))
    dK = dK + weighed(B.mT, (Gamma * K[:, :, None]).transpose(1, 2))
    dbeta = (X * unweighted).sum(-1)
    dS = D * gamma[:, -1:] + c.G.mT @ (gamma * Q) - dR.mT @ (gamma * K)

    pairs = later * (P[..., None] * Q[:, :, None] + B[..., None] * K[:, :, None])  # Gamma dGamma
    pairs[:, -1] += to_end * K * written
    of_start = gamma * (Q * read_q - K * read_k)  # gamma dgamma
    of_start[:, -1] += gamma[:, -1] * (end * S).sum(-2)
    before = torch.ones_like(P[0]).tril(-1)[..., None]  # j < t
    dg = (_from_here_on(pairs) * before).sum(2) + _from_here_on(of_start)
    return dQ, dK, dR, dg, dbeta, dS


def _from_here_on(x: Tensor) -> Tensor:
    """The sum over i >= t: [H, C, ..] from [H, C, ..]."""
    return x.flip(1).cumsum(1).flip(1)


def prefill_backward_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    do: Tensor | None,
    dht: Tensor | None,
    chunk_size: int = 16,
    stored: Stored = as_it_is,
) -> Gradients:
    """As `backward.prefill_backward_k_last`, in chunks of `chunk_size` tokens. Gamma has chunk_size^2 K numbers for
    each head: small chunks are the quick ones here."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state, do, dht)
    (T, H), num_seqs, size = v.shape[:2], cu_seqlens.numel() - 1, q.shape[-1]

    def given(x: Tensor | None, shape: tuple[int, ...], otherwise: float) -> Tensor:
        return torch.full(shape, otherwise, dtype=dtype, device=q.device) if x is None else x.to(dtype)

    Q, K, V = (expand_heads(x.to(dtype), H) for x in (q, k, v))
    alpha, write = given(g, (T, H, size), 0.0).exp(), given(beta, (T, H), 1.0)[..., None]
    G = default_scale(size, scale) * given(do, (T, H, size), 0.0)
    S, dh0 = (given(x, (num_seqs, H, size, size), 0.0).clone() for x in (initial_state, dht))
    dQ, dK, dV, dg, dbeta = (torch.zeros_like(x) for x in (Q, K, V, alpha, write[..., 0]))
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        chunks = []
        for first in range(start, stop, chunk_size):
            rows = slice(first, min(first + chunk_size, stop))
            one, S[n] = forward(*(x[rows].transpose(0, 1) for x in (Q, K, V, alpha, write, G)), S[n].clone())
            chunks.append((rows, one))
        for rows, one in reversed(chunks):
            *of_tokens, dh0[n] = backward(one, dh0[n].clone(), rows.start == start, rows.stop == stop, stored)
            for whole, part in zip((dQ, dK, dV, dg, dbeta), of_tokens, strict=True):
                whole[rows] = part.transpose(0, 1)
    dq, dk, dv = (fold_heads(dx, x.shape[1]).to(x.dtype) for dx, x in ((dQ, q), (dK, k), (dV, v)))
    return dq, dk, dv, dg, dbeta, dh0
