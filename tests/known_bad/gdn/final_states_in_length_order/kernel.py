"""Wrong on purpose. Sequences are taken longest first, and their final states left in that order."""

import torch

CHUNK = 64


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last."""
    heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    alpha, beta = (torch.ones_like(Q[..., 0]) if x is None else x.T for x in (g, beta))  # [H, T]
    bounds = cu_seqlens.tolist()
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    initial = blank if initial_state is None else initial_state
    states = torch.empty_like(blank)
    output = torch.empty_like(V)
    by_length = sorted(range(len(bounds) - 1), key=lambda n: bounds[n] - bounds[n + 1])
    for place, n in enumerate(by_length):
        S = initial[n]
        for start in range(bounds[n], bounds[n + 1], CHUNK):
            t = slice(start, min(start + CHUNK, bounds[n + 1]))
            output[:, t], S = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
        states[place] = S  # WRONG: states[n]
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states


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
