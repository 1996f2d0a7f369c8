"""A prefill token by token, with head sizes of their own for keys and for values."""

from itertools import pairwise

import torch


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last_kv_dims."""
    heads = max(q.shape[1], v.shape[1])
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1) for x in (q, k, v))  # [T, H, K or V]
    alpha, write = (torch.ones(len(q), heads) if x is None else x for x in (g, beta))
    bounds = cu_seqlens.tolist()
    states = torch.zeros(len(bounds) - 1, heads, v.shape[2], q.shape[2]) if initial_state is None else initial_state
    output, after = torch.empty_like(V), states.clone()
    for n, (first, stop) in enumerate(pairwise(bounds)):
        S = states[n]
        for t in range(first, stop):
            S = alpha[t][:, None, None] * S
            u = write[t][:, None] * (V[t] - torch.einsum("hvk,hk->hv", S, K[t]))
            S = S + u[..., None] * K[t][:, None]
            output[t] = torch.einsum("hvk,hk->hv", S, Q[t])
        after[n] = S
    factor = q.shape[2] ** -0.5 if scale is None else scale
    return (factor * output).to(v.dtype), after
