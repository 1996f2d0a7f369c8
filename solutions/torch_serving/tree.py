"""Verify over a tree of drafts: token by token, each from the state after the one that it follows."""

import torch
from kernel import raw_gates, step, vectors


def verify_tree(
    q, k, v, pool, slots, step_states, step_slots, drafts, parents, A_log, a, dt_bias, b, scale, use_qk_l2norm
):  # fmt: skip
    """gdn_verify_tree_k_last: parents [B, T] are earlier tokens of the row, or -1 for the state in the pool."""
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    Q, K, V = vectors(q, k, v, pool.shape[1], use_qk_l2norm)  # [B, T, H, D]
    alpha, beta = raw_gates(A_log, a, dt_bias, b)  # [B, T, H]
    output = torch.zeros_like(v)
    live = (slots >= 0).nonzero()[:, 0]
    start = pool[slots[live].long()].float()
    after = torch.zeros(q.shape[1], *start.shape, device=q.device)  # the states after each token, [T, rows, H, V, K]
    for t in range(q.shape[1]):
        there = (drafts[live] > t).nonzero()[:, 0]
        rows = live[there]
        parent = parents[rows, t].long()
        known = (parent < 0)[:, None, None, None]
        S = torch.where(known, start[there], after[parent.clamp(min=0), there])
        o, S = step(S, Q[rows, t], K[rows, t], V[rows, t], alpha[rows, t], beta[rows, t])
        after[t, there] = S
        output[rows, t] = (factor * o).to(v.dtype)
        step_states[step_slots[rows].long(), t] = S.to(step_states.dtype)
    return output
