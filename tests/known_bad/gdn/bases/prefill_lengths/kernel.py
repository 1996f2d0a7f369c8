"""A prefill in chunks of 64 tokens that reads the bounds of the sequences in a function of its own; states [K, V]."""

from itertools import pairwise

import torch

CHUNK = 64


def lengths(cu_seqlens):
    """The bounds of the sequences, on the host."""
    return cu_seqlens.tolist()


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first."""
    heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    beta = torch.ones_like(Q[..., 0]) if beta is None else beta.T  # [H, T]
    alpha = torch.ones_like(beta) if g is None else g.T.exp()
    bounds = lengths(cu_seqlens)
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    states = blank if initial_state is None else initial_state.clone()
    output = torch.empty_like(V)
    for n, (first, stop) in enumerate(pairwise(bounds)):
        for start in range(first, stop, CHUNK):
            t = slice(start, min(start + CHUNK, stop))
            output[:, t], states[n] = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], states[n])
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states


def chunk(Q, K, V, alpha, beta, S):
    """One chunk of all heads: Q, K, V [H, C, D], alpha, beta [H, C], S [H, K, V]. Returns O, S."""
    below = Q.new_ones(Q.shape[1], Q.shape[1]).tril(-1) > 0
    ratios = torch.where(below, alpha[..., None], 1.0).cumprod(-2).tril()  # decay from token j to token i
    gamma, beta = alpha.cumprod(-1)[..., None], beta[..., None]
    A = (beta * ratios * (K @ K.mT)).tril(-1)
    right = beta * (V - gamma * (K @ S))
    U = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    O = gamma * (Q @ S) + (ratios * (Q @ K.mT)) @ U
    return O, gamma[:, -1:] * S + K.mT @ (ratios[:, -1, :, None] * U)
