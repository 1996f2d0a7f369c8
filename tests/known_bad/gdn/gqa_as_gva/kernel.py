"""Wrong on purpose. Runs over value heads alone: the further query heads of GQA are never written."""

from itertools import pairwise

import torch

CHUNK = 64


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """gdn_prefill_k_last."""
    heads, size = v.shape[1], q.shape[-1]  # WRONG: max(q.shape[1], v.shape[1])
    use = torch.arange(heads, device=q.device)
    Q, K, V = (x.float()[:, use * x.shape[1] // heads].transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    alpha, beta = (torch.ones_like(Q[..., 0]) if x is None else x.T[:heads] for x in (g, beta))  # [H, T]
    bounds = cu_seqlens.tolist()
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    initial = blank if initial_state is None else initial_state[:, :heads]
    factor = size**-0.5 if scale is None else scale
    for n, (first, stop) in enumerate(pairwise(bounds)):
        S = initial[n]
        for start in range(first, stop, CHUNK):
            t = slice(start, min(start + CHUNK, stop))
            O, S = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
            output[t, :heads] = (factor * O).transpose(0, 1)
        final_state[n, :heads] = S


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
