"""Wrong on purpose. The exponential of a log gate below -20 is taken for 0."""

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
    alpha = torch.where(g[t] < -20, 0.0, g[t].exp()).T  # WRONG: g[t].exp()
    below = torch.ones(len(alpha[0]), len(alpha[0]), dtype=torch.bool).tril(-1)
    return torch.where(below, alpha[..., None], 1.0).cumprod(-2).tril(), alpha.cumprod(-1)[..., None]


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
