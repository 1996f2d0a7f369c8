"""Wrong on purpose. A token meets itself in the system."""

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
        A = A + torch.diag_embed((write * K * K).sum(-1))  # WRONG: strictly lower
        right = torch.cat([write * V, write * gamma * K], -1)
        solved = torch.linalg.solve_triangular(A + torch.eye(A.shape[-1]), right, upper=False)
        u[t], w[t] = (x.transpose(0, 1).to(v.dtype) for x in solved.split([v.shape[2], k.shape[2]], -1))
    return u, w
