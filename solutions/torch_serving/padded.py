"""Prefill over a padded batch: all rows that have a token at a position, position by position."""

import torch
from kernel import step, vectors


def prefill_padded(q, k, v, g, beta, attention_mask, initial_state, scale):
    """gdn_prefill_padded_k_first: states are [B, H, K, V], and [B, H, V, K] inside."""
    (B, T, _, D), H = q.shape, max(q.shape[2], v.shape[2])
    factor = D**-0.5 if scale is None else float(scale)
    Q, K, V = vectors(q, k, v, H, use_qk_l2norm=False)  # [B, T, H, D]
    alpha = torch.ones(B, T, H, device=q.device) if g is None else torch.exp(g)
    write = torch.ones(B, T, H, device=q.device) if beta is None else beta
    output = torch.zeros(B, T, H, D, dtype=v.dtype, device=q.device)
    S = torch.zeros(B, H, D, D, device=q.device)
    if initial_state is not None:
        S.copy_(initial_state.mT)  # in the order of S: how a sum is taken depends on that
    for t in range(T):
        rows = (attention_mask[:, t] != 0).nonzero()[:, 0]  # padding is not a step: no gate, no write
        o, S[rows] = step(S[rows], Q[rows, t], K[rows, t], V[rows, t], alpha[rows, t], write[rows, t])
        output[rows, t] = (factor * o).to(v.dtype)
    return output, S.mT.contiguous()
