"""The gradients of prefill by chunks, from the chunkwise equations of the forward pass and not from the recurrence.

One chunk of C tokens of one head, in the notation of chunkwise.py; S is the state at its start. With the matrices

    P = Gamma * Q K^T (lower),      A = diag(beta) (Gamma * K K^T) (strictly lower),      M = (I + A)^-1

the forward pass is

    R = V - diag(gamma) K S^T,      U = M diag(beta) R
    O = scale (diag(gamma) Q S^T + P U),      S_end = gamma_C S + U^T diag(Gamma_C,:) K

Let G = scale dO, and D the gradient of S_end. Differentiating each equation gives

    dU = P^T G + diag(Gamma_C,:) K D^T                   X = M^T dU              dV = dR = diag(beta) X
    dS = gamma_C D + (diag(gamma) G)^T Q - dR^T diag(gamma) K
    dP = lower(G U^T),      dA = -strict_lower(X U^T)    (from dM = -M^T dA M^T)
    dQ = diag(gamma) G S + (dP * Gamma) K
    dK = (dP * Gamma)^T Q + (B + B^T) K - diag(gamma) dR S + diag(Gamma_C,:) U D,      B = diag(beta) (dA * Gamma)
    dbeta_i = X_i . (R - strict_lower(Gamma * K K^T) U)_i

and the gates are reached through Gamma and gamma alone. Both are products of gates, so that

    dalpha_t = sum over i >= t of Gamma_it (sum over j < t of dGamma_ij Gamma_{t-1,j} + dgamma_i gamma_{t-1})

where each product stands without its factor alpha_t: nothing is divided, and alpha = 0 is exact.

The functions take and return what their namesakes in backward.py do. In float64 the two agree to 1e-10. Only two walks
over the chunks are serial: that of the states, and that of their gradients backwards.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from .backward import Gradients, fold_heads
from .chunkwise import decay_ratios
from .gated_delta_net import arithmetic_type, default_scale, expand_heads

Stored = Callable[[Tensor], Tensor]


def as_it_is(x: Tensor) -> Tensor:
    """What the walks leave for the kernels behind them may be stored in 16 bits. Here it is not."""
    return x


def gradient_of_gates(Gamma: Tensor, gamma: Tensor, dGamma: Tensor, dgamma: Tensor) -> Tensor:
    """dalpha [.., C] from the gradients of Gamma [.., C, C] and of gamma [.., C].

    The state before the chunk is one more column: gamma is its decay to each token. These sums are no product that a
    tensor core takes: `einsum` keeps them out of what the emulators round.
    """
    d = torch.cat([dgamma[..., None], dGamma], -1)  # [.., C, 1 + C]
    decays = torch.cat([gamma[..., None], Gamma], -1)[..., :-1, :]  # to the token before; to the first: of the state
    first = torch.zeros_like(d[..., :1, :])
    first[..., 0] = 1.0
    before = torch.cat([first, decays], -2)
    return (torch.einsum("...it,...ij->...tj", Gamma, d) * before).sum(-1)


def sequence(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, S: Tensor, do: Tensor, D: Tensor, scale: float,
    chunk_size: int, stored: Stored = as_it_is,
) -> Gradients:  # fmt: skip
    """One sequence of T >= 1 tokens: q, k [H, T, K]; v, do [H, T, V]; alpha, beta [H, T]; S and D, the gradient of the
    final state, [H, V, K]. Returns dq, dk, dv, dalpha, dbeta and the gradient of S."""
    H, T, _ = q.shape
    C = min(chunk_size, T)
    N = -(-T // C)

    def chunks(x: Tensor, fill: float) -> Tensor:  # [H, T, ...] -> [H, N, C, ...]
        tail = x.new_full((H, N * C - T, *x.shape[2:]), fill)
        return torch.cat([x, tail], dim=1).reshape(H, N, C, *x.shape[2:])

    # A padding token does nothing: alpha = 1 keeps the state, beta = 0 writes nothing, and nobody reads there.
    Q, K, V, G = chunks(q, 0.0), chunks(k, 0.0), chunks(v, 0.0), scale * chunks(do, 0.0)
    alpha, beta = chunks(alpha, 1.0), chunks(beta, 0.0)[..., None]  # beta [H, N, C, 1]

    Gamma, gamma = decay_ratios(alpha)
    keys, attention = Gamma * (K @ K.mT), Q @ K.mT
    eye = torch.eye(C, dtype=q.dtype, device=q.device)
    M = torch.linalg.solve_triangular(
        eye + beta * keys.tril(-1), eye.expand(H, N, C, C), upper=False, unitriangular=True
    )  # fmt: skip
    decay, whole = gamma[..., None], gamma[..., -1:, None]  # [H, N, C, 1], [H, N, 1, 1]
    to_end = Gamma[..., -1, :, None]

    # The states at the start of each chunk, forwards.
    starts, R, U = V.new_empty(H, N, *S.shape[1:]), torch.empty_like(V), torch.empty_like(V)
    for n in range(N):
        starts[:, n] = S
        R[:, n] = V[:, n] - decay[:, n] * (K[:, n] @ S.mT)
        U[:, n] = M[:, n] @ (beta[:, n] * R[:, n])
        S = whole[:, n] * S + (to_end[:, n] * U[:, n]).mT @ K[:, n]

    # The gradients of the states at the end of each chunk, backwards.
    ends, X = torch.empty_like(starts), torch.empty_like(V)
    PG = (Gamma * attention).mT @ G
    for n in reversed(range(N)):
        ends[:, n] = D
        X[:, n] = M[:, n].mT @ (PG[:, n] + to_end[:, n] * (K[:, n] @ D.mT))
        dR = decay[:, n] * beta[:, n] * X[:, n]
        D = whole[:, n] * D + (decay[:, n] * G[:, n]).mT @ Q[:, n] - dR.mT @ K[:, n]

    # Everything else, all chunks together: kernels of their own, which read what the walks left. The two outermost
    # states are given.
    X, unweighted = stored(X), stored(R - keys.tril(-1) @ U)
    starts[:, 1:], ends[:, :-1] = stored(starts[:, 1:]), stored(ends[:, :-1])
    dV = beta * X
    dP, dA = (G @ U.mT).tril(), -(X @ U.mT).tril(-1)
    read_q, read_k, written = Q @ starts.mT, K @ starts.mT, U @ ends
    B = beta * Gamma * dA
    dQ = decay * (G @ starts) + (dP * Gamma) @ K
    dK = (dP * Gamma).mT @ Q + (B + B.mT) @ K - decay * (dV @ starts) + to_end * written
    dbeta = (X * unweighted).sum(-1)

    dGamma = dP * attention + beta * dA * (K @ K.mT)
    dGamma[..., -1, :] += (K * written).sum(-1)
    dgamma = (G * read_q - dV * read_k).sum(-1)
    dgamma[..., -1] += (ends * starts).sum((-2, -1))
    dalpha = gradient_of_gates(Gamma, gamma, dGamma, dgamma)
    of_tokens = (x.reshape(H, N * C, *x.shape[3:])[:, :T] for x in (dQ, dK, dV, dalpha, dbeta))
    return (*of_tokens, D)


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
    chunk_size: int = 64,
    stored: Stored = as_it_is,
) -> Gradients:
    """As `backward.prefill_backward_k_last`, in chunks of `chunk_size` tokens. `stored`: see `as_it_is`."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state, do, dht)
    H, num_seqs = max(q.shape[1], v.shape[1]), cu_seqlens.numel() - 1

    def given(x: Tensor | None, shape: tuple[int, ...], otherwise: float) -> Tensor:
        return torch.full(shape, otherwise, dtype=dtype, device=q.device) if x is None else x.to(dtype)

    Q, K, V = (expand_heads(x.to(dtype), H).transpose(0, 1) for x in (q, k, v))  # [H, T, d]
    alpha, write = (given(x, (q.shape[0], H), 1.0).T for x in (g, beta))
    S, dS = (given(x, (num_seqs, H, v.shape[-1], q.shape[-1]), 0.0) for x in (initial_state, dht))
    dO = given(do, (q.shape[0], H, v.shape[-1]), 0.0).transpose(0, 1)
    dQ, dK, dV, dalpha, dbeta = (torch.zeros_like(x) for x in (Q, K, V, alpha, write))
    dh0 = dS.clone()  # of an empty sequence
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if start == stop:
            continue
        t = slice(start, stop)
        of_tokens = Q[:, t], K[:, t], V[:, t], alpha[:, t], write[:, t]
        found = sequence(*of_tokens, S[n], dO[:, t], dS[n], default_scale(q.shape[-1], scale), chunk_size, stored)
        dQ[:, t], dK[:, t], dV[:, t], dalpha[:, t], dbeta[:, t], dh0[n] = found
    dq, dk, dv = (fold_heads(dx.transpose(0, 1), x.shape[1]).to(x.dtype) for dx, x in ((dQ, q), (dK, k), (dV, v)))
    return dq, dk, dv, dalpha.T.contiguous(), dbeta.T.contiguous(), dh0


def prefill_backward_k_first(
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
    chunk_size: int = 64,
    stored: Stored = as_it_is,
) -> Gradients:
    """As `backward.prefill_backward_k_first`, in chunks of `chunk_size` tokens. `stored`: see `as_it_is`."""
    alpha = None if g is None else torch.exp(g.to(arithmetic_type(q, k, v, g, beta, initial_state, do, dht)))
    S, dS = (None if x is None else x.mT.contiguous() for x in (initial_state, dht))
    dq, dk, dv, dalpha, dbeta, dh0 = prefill_backward_k_last(
        q, k, v, alpha, beta, cu_seqlens, S, scale, do, dS, chunk_size, stored
    )  # fmt: skip
    return dq, dk, dv, dalpha if alpha is None else alpha * dalpha, dbeta, dh0.mT.contiguous()
