"""Wrong on purpose. Where rounding makes a difference of cumulative logs positive, its exponential is replaced by 0."""

from itertools import pairwise

import torch

CHUNK = 64


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
        for start in range(first, stop, CHUNK):
            t = slice(start, min(start + CHUNK, stop))
            output[:, t], S = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
        states[n] = S
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states


def scan(x):
    """The sums of all that stand before and at each place, as a parallel scan adds them up."""
    step = 1
    while step < x.shape[-1]:
        x = torch.cat([x[..., :step], x[..., step:] + x[..., :-step]], dim=-1)
        step *= 2
    return x


def chunk(Q, K, V, alpha, beta, S):
    """One chunk of all heads: Q, K, V [H, C, D], alpha, beta [H, C], S [H, V, K]. Returns O, S."""
    total = scan(torch.log(alpha))
    apart = total[..., :, None] - total[..., None, :]
    ratios = torch.where(apart <= 0, torch.exp(apart), 0.0).tril()  # WRONG: exp of it, at most 1
    gamma, beta = alpha.cumprod(-1)[..., None], beta[..., None]
    A = (beta * ratios * (K @ K.mT)).tril(-1)
    right = beta * (V - gamma * (K @ S.mT))
    U = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    O = gamma * (Q @ S.mT) + (ratios * (Q @ K.mT)) @ U
    return O, gamma[:, -1:] * S + (ratios[:, -1, :, None] * U).mT @ K
