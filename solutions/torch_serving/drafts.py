"""Verify, where each row has a number of draft tokens of its own: all rows that still have one, token by token."""

import torch
from kernel import raw_gates, step, vectors


def verify_drafts(
    q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, scale, use_qk_l2norm
):  # fmt: skip
    """gdn_verify_drafts_k_last and its bf16_state: the state after each token goes to step_states [num_slots, T, H, V,
    K]; pool [num_slots, H, V, K] is only read."""
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    Q, K, V = vectors(q, k, v, pool.shape[1], use_qk_l2norm)  # [B, T, H, D]
    alpha, beta = raw_gates(A_log, a, dt_bias, b)  # [B, T, H]
    output = torch.zeros_like(v)
    live = (slots >= 0).nonzero()[:, 0]
    S = pool[slots[live].long()].float()
    for t in range(q.shape[1]):
        there = drafts[live] > t
        rows = live[there]
        o, S[there] = step(S[there], Q[rows, t], K[rows, t], V[rows, t], alpha[rows, t], beta[rows, t])
        output[rows, t] = (factor * o).to(v.dtype)
        step_states[step_slots[rows].long(), t] = S[there].to(step_states.dtype)
    return output
