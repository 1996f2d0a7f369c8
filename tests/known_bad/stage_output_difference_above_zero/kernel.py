"""Wrong on purpose. Where rounding makes a difference of cumulative logs positive, its exponential is replaced by 0."""

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
    total, rows = alpha.log(), alpha.shape[-1]
    step = 1
    while step < rows:  # as a parallel scan adds up
        total = torch.cat([total[..., :step], total[..., step:] + total[..., :-step]], -1)
        step *= 2
    apart = total[..., None] - total[..., None, :]
    ratios = torch.where(apart <= 0, apart.exp(), 0.0).tril()  # WRONG: exp of it, at most 1
    return ratios, alpha.cumprod(-1)[..., None]


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
