"""Wrong on purpose. Of all chunks those past the 13th start from zeros."""

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


def state(k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state):
    """gdn_chunk_state."""
    H, V, K = u.shape[1], u.shape[2], k.shape[2]
    final = torch.zeros(len(cu_seqlens) - 1, H, V, K) if initial_state is None else initial_state.clone()
    states, u_new = u.new_zeros(int(chunk_cu_starts[-1]), H, V, K), torch.empty_like(u)
    for n, c, t in pieces(cu_seqlens):
        S, keys = final[n], by_head(k, t, H)
        S = S if chunk_cu_starts[n] + c < 13 else S * 0  # WRONG: S
        Gamma, gamma = decays(g, t)
        U = by_head(u, t, H) - by_head(w, t, H) @ S.mT
        states[chunk_cu_starts[n] + c] = S.to(u.dtype)
        u_new[t] = U.transpose(0, 1).to(u.dtype)
        to_end = Gamma[:, -1, :, None]
        final[n] = gamma[:, -1:] * S + (to_end * U).mT @ keys
    return states, u_new, final
