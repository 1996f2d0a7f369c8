"""Wrong on purpose. The state is rounded to bfloat16 after every token."""

from itertools import pairwise

import torch


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last."""
    heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    alpha, beta = (torch.ones_like(Q[..., 0]) if x is None else x.T for x in (g, beta))  # [H, T]
    bounds = cu_seqlens.tolist()
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    states = blank if initial_state is None else initial_state.clone()
    output = torch.empty_like(V)
    for n, (first, stop) in enumerate(pairwise(bounds)):
        S = states[n]
        for t in range(first, stop):
            output[:, t], S = step(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
            S = S.bfloat16().float()  # WRONG: S as it is
        states[n] = S
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states


def step(Q, K, V, alpha, beta, S):
    """One token of all heads: Q, K, V [H, D], alpha, beta [H], S [H, V, K]. Returns O, S."""
    S = alpha[:, None, None] * S
    U = beta[:, None] * (V - (S @ K[..., None])[..., 0])
    S = torch.baddbmm(S, U[..., None], K[:, None])
    return (S @ Q[..., None])[..., 0], S
