"""Prefill from slots of a pool and back into them: all sequences that still have a token, position by position."""

import torch
from kernel import step, vectors


def prefill_pool_slot_zero(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale):
    """gdn_prefill_pool_k_last_slot_zero: slot 0 stands for none."""
    known = torch.where(slots > 0, slots, -1)
    return prefill_pool(q, k, v, g, beta, cu_seqlens, pool, known, has_initial_state, scale)


def prefill_pool(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale):
    """gdn_prefill_pool_k_last and its bf16_state: pool [num_slots, H, V, K] is updated in place."""
    H, factor = pool.shape[1], q.shape[-1] ** -0.5 if scale is None else float(scale)
    Q, K, V = vectors(q, k, v, H, use_qk_l2norm=False)  # [T, H, D]
    alpha, write = (torch.ones(len(q), H, device=q.device) if x is None else x for x in (g, beta))
    output = torch.zeros(len(q), H, v.shape[-1], dtype=v.dtype, device=q.device)
    starts, lengths = cu_seqlens[:-1], cu_seqlens[1:] - cu_seqlens[:-1]
    live = ((slots >= 0) & (lengths > 0)).nonzero()[:, 0]
    place = slots[live].long()
    known = has_initial_state[live][:, None, None, None]
    S = torch.where(known, pool[place].float(), 0.0)  # chosen, not multiplied: a slot that is not read may hold NaN
    for t in range(int(lengths[live].max()) if len(live) else 0):
        there = lengths[live] > t
        rows = starts[live[there]] + t
        o, S[there] = step(S[there], Q[rows], K[rows], V[rows], alpha[rows], write[rows])
        output[rows] = (factor * o).to(v.dtype)
    pool[place] = S.to(pool.dtype)
    return output
