"""A prefill in chunks of 64 tokens that keeps the state at the end of each interval."""

from itertools import pairwise

import torch

CHUNK = 64


def prefill(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """gdn_prefill_checkpoints."""
    heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    alpha, beta = (torch.ones_like(Q[..., 0]) if x is None else x.T for x in (g, beta))  # [H, T]
    bounds, starts = cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    states = blank if initial_state is None else initial_state.clone()
    output = torch.empty_like(V)
    checkpoints = Q.new_zeros(starts[-1], heads, size, size)
    for n, (first, stop) in enumerate(pairwise(bounds)):
        S = states[n]
        for start in range(first, stop, CHUNK):
            t = slice(start, min(start + CHUNK, stop))
            output[:, t], S = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
            row, rest = divmod(t.stop - first, checkpoint_interval)
            if rest == 0:
                checkpoints[starts[n] + row - 1] = S
        states[n] = S
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states, checkpoints


def chunk(Q, K, V, alpha, beta, S):
    """One chunk of all heads: Q, K, V [H, C, D], alpha, beta [H, C], S [H, V, K]. Returns O, S."""
    below = Q.new_ones(Q.shape[1], Q.shape[1]).tril(-1) > 0
    ratios = torch.where(below, alpha[..., None], 1.0).cumprod(-2).tril()  # decay from token j to token i
    gamma, beta = alpha.cumprod(-1)[..., None], beta[..., None]
    A = (beta * ratios * (K @ K.mT)).tril(-1)
    right = beta * (V - gamma * (K @ S.mT))
    U = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    O = gamma * (Q @ S.mT) + (ratios * (Q @ K.mT)) @ U
    return O, gamma[:, -1:] * S + (ratios[:, -1, :, None] * U).mT @ K
