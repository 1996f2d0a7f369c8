"""The three stages of a prefill in chunks of 64 tokens: WY form, states, outputs."""

from itertools import pairwise

import torch


def pieces(cu_seqlens):
    """Rows of each chunk, sequence by sequence: (sequence, chunk of it, rows)."""
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        for c, first in enumerate(range(start, stop, 64)):
            yield n, c, slice(first, min(first + 64, stop))


def by_head(x, t, heads):
    """[H, C, ..] of the rows t."""
    return x[t].float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1)


def decays(g, t):
    """Gamma [H, C, C] and gamma [H, C, 1]."""
    alpha = g[t].exp().T
    below = torch.ones(len(alpha[0]), len(alpha[0]), dtype=torch.bool).tril(-1)
    return torch.where(below, alpha[..., None], 1.0).cumprod(-2).tril(), alpha.cumprod(-1)[..., None]


def wy(k, v, g, beta, cu_seqlens):
    """gdn_chunk_wy."""
    H = v.shape[1]
    u, w = torch.empty_like(v), v.new_empty(*v.shape[:2], k.shape[2])
    for _, _, t in pieces(cu_seqlens):
        K, V, write = by_head(k, t, H), by_head(v, t, H), beta[t].T[..., None]
        Gamma, gamma = decays(g, t)
        A = (write * Gamma * (K @ K.mT)).tril(-1)
        right = torch.cat([write * V, write * gamma * K], -1)
        solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
        u[t], w[t] = (x.transpose(0, 1).to(v.dtype) for x in solved.split([v.shape[2], k.shape[2]], -1))
    return u, w


def state(k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state):
    """gdn_chunk_state."""
    H, V, K = u.shape[1], u.shape[2], k.shape[2]
    final = torch.zeros(len(cu_seqlens) - 1, H, V, K) if initial_state is None else initial_state.clone()
    states, u_new = u.new_zeros(int(chunk_cu_starts[-1]), H, V, K), torch.empty_like(u)
    for n, c, t in pieces(cu_seqlens):
        S, keys = final[n], by_head(k, t, H)
        Gamma, gamma = decays(g, t)
        U = by_head(u, t, H) - by_head(w, t, H) @ S.mT
        states[chunk_cu_starts[n] + c] = S.to(u.dtype)
        u_new[t] = U.transpose(0, 1).to(u.dtype)
        to_end = Gamma[:, -1, :, None]
        final[n] = gamma[:, -1:] * S + (to_end * U).mT @ keys
    return states, u_new, final


def output(q, k, u_new, states, g, cu_seqlens, chunk_cu_starts, scale):
    """gdn_chunk_output."""
    out, H = torch.empty_like(u_new), u_new.shape[1]
    factor = q.shape[2] ** -0.5 if scale is None else scale
    for n, c, t in pieces(cu_seqlens):
        Q, K, U = by_head(q, t, H), by_head(k, t, H), by_head(u_new, t, H)
        Gamma, gamma = decays(g, t)
        S = states[chunk_cu_starts[n] + c].float()
        O = gamma * (Q @ S.mT) + (Gamma * (Q @ K.mT)) @ U
        out[t] = (factor * O).transpose(0, 1).to(out.dtype)
    return out
