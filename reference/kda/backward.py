"""The gradients of prefill, as a recurrence that runs backwards over the tokens: the executable specification.

One token of the forward pass (kimi_delta_attention.py), with S the state before it, S [V, K], and alpha = exp(g) [K]:

    S' = S Diag(alpha);   r = v - S' k;   u = beta r;   S'' = S' + u k^T;   o = scale S'' q

Let d x be the gradient of a loss with respect to x. Given do of the token, and dS'' that the tokens behind it leave,
the chain rule gives, line by line from the last:

    dS'' += scale do q^T                 dq = scale S''^T do                     read
    du = dS'' k                          dk = dS''^T u                           write
    dbeta = du . r                       dv = beta du
    dS' = dS'' - dv k^T                  dk -= S'^T dv                           error
    dg_c = sum_i S'_ic dS'_ic            dS = dS' Diag(alpha)                    decay

The gate is in log space, so that dg has the decayed state in it, alpha dalpha, and nothing is divided: where g = -inf,
dg is 0. The walk starts from dht, the gradient of the final state, and what it ends with is dh0. dq and dk of a key
head are sums over its value heads.
"""

from itertools import pairwise

import torch
from torch import Tensor

from .kimi_delta_attention import arithmetic_type, default_scale, expand_heads, read

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def outer(x: Tensor, y: Tensor) -> Tensor:
    """x y^T: [..., V] and [..., K] to [..., V, K]."""
    return x[..., :, None] * y[..., None, :]


def fold_heads(x: Tensor, heads: int) -> Tensor:
    """[..., num_v_heads, d] -> [..., heads, d], the transpose of `expand_heads`: heads that share one are added."""
    return x.unflatten(-2, (heads, -1)).sum(-2)


def sequence(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, S: Tensor, do: Tensor, dS: Tensor, scale: float
) -> Gradients:
    """One sequence of T tokens: q, k, alpha [T, H, K]; v, do [T, H, V]; beta [T, H]; S, dS [H, V, K].

    Returns dq, dk, dv, dg, dbeta and the gradient of S.
    """
    before = []  # the state before each token
    for t in range(len(q)):
        before.append(S)
        S = alpha[t, :, None] * S
        S = S + outer(beta[t, :, None] * (v[t] - read(S, k[t])), k[t])

    dq, dk, dv, dg, dbeta = (torch.zeros_like(x) for x in (q, k, v, alpha, beta))
    for t in reversed(range(len(q))):
        decayed = alpha[t, :, None] * before[t]  # S'
        r = v[t] - read(decayed, k[t])
        u = beta[t, :, None] * r
        after = decayed + outer(u, k[t])  # S''

        dS = dS + scale * outer(do[t], q[t])
        dq[t] = scale * read(after.mT, do[t])
        du = read(dS, k[t])
        dbeta[t] = (du * r).sum(-1)
        dv[t] = beta[t, :, None] * du
        dk[t] = read(dS.mT, u) - read(decayed.mT, dv[t])
        dS = dS - outer(dv[t], k[t])
        dg[t] = (decayed * dS).sum(-2)
        dS = alpha[t, :, None] * dS
    return dq, dk, dv, dg, dbeta, dS


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
) -> Gradients:
    """The gradients of `kimi_delta_attention.prefill_k_last`, given those of its output and of its final state.

    do [total_seq_len, num_v_heads, V]; dht [num_seqs, num_v_heads, V, K]; absent: zeros. Returns dq, dk and dv in the
    types of q, k and v; dg [total_seq_len, num_v_heads, K], dbeta and dh0 in the type of the arithmetic, also where
    their inputs are absent. An empty sequence hands dht on as dh0.
    """
    dtype = arithmetic_type(q, k, v, g, beta, initial_state, do, dht)
    (T, H), num_seqs = v.shape[:2], cu_seqlens.numel() - 1
    size = q.shape[-1]

    def given(x: Tensor | None, shape: tuple[int, ...], otherwise: float) -> Tensor:
        return torch.full(shape, otherwise, dtype=dtype, device=q.device) if x is None else x.to(dtype)

    Q, K, V = (expand_heads(x.to(dtype), H) for x in (q, k, v))
    alpha, write = torch.exp(given(g, (T, H, size), 0.0)), given(beta, (T, H), 1.0)
    S, dS = (given(x, (num_seqs, H, size, size), 0.0) for x in (initial_state, dht))
    dO = given(do, (T, H, size), 0.0)

    dQ, dK, dV, dg, dbeta, dh0 = (torch.zeros_like(x) for x in (Q, K, V, alpha, write, S))
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        t = slice(start, stop)
        of_tokens = Q[t], K[t], V[t], alpha[t], write[t]
        found = sequence(*of_tokens, S[n], dO[t], dS[n], default_scale(size, scale))
        dQ[t], dK[t], dV[t], dg[t], dbeta[t], dh0[n] = found
    dq, dk, dv = (fold_heads(dx, x.shape[1]).to(x.dtype) for dx, x in ((dQ, q), (dK, k), (dV, v)))
    return dq, dk, dv, dg, dbeta, dh0
