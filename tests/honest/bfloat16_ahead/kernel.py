"""Chunkwise prefill as tensor cores do it: bfloat16 operands, float32 sums; chunks of 32 tokens.

T = (I + A)^-1 diag(beta) is rounded to bfloat16; T V and W = T diag(gamma) K are formed ahead, without
the state.
"""

from itertools import pairwise

import torch

CHUNK = 32


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last: states [V, K], alpha = g."""
    return prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first: states [K, V], alpha = exp(g)."""
    alpha = None if g is None else g.exp()
    initial = None if initial_state is None else initial_state.mT
    output, states = prefill(q, k, v, alpha, beta, cu_seqlens, initial, scale)
    return output, states.mT.contiguous()


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """gdn_prefill_checkpoints: an interval is a number of chunks."""
    ends = []
    output, states = prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, ends)
    kept = [S for tokens, S in ends if tokens % checkpoint_interval == 0]
    return output, states, torch.stack(kept) if kept else states[:0]


def prefill(q, k, v, alpha, beta, cu_seqlens, initial_state, scale, ends=None):
    """alpha, beta [T, H] and states [num_seqs, H, V, K], or None. Returns output, states; `ends` gets the state after
    each chunk, with the tokens of its sequence so far."""
    heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    Q, K, V = (x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1) for x in (q, k, v))  # [H, T, D]
    alpha, beta = (torch.ones_like(Q[..., 0]) if x is None else x.T for x in (alpha, beta))  # [H, T]
    bounds = cu_seqlens.tolist()
    blank = Q.new_zeros(len(bounds) - 1, heads, size, size)
    states = blank if initial_state is None else initial_state.clone()
    output = torch.empty_like(V)
    for n, (first, stop) in enumerate(pairwise(bounds)):
        S = states[n]
        for start in range(first, stop, CHUNK):
            t = slice(start, min(start + CHUNK, stop))
            output[:, t], S = chunk(Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t], S)
            if ends is not None:
                ends.append((t.stop - first, S))
        states[n] = S
    factor = size**-0.5 if scale is None else scale
    return (factor * output).transpose(0, 1).to(v.dtype), states


def chunk(Q, K, V, alpha, beta, S):
    """One chunk of all heads: Q, K, V [H, C, D], alpha, beta [H, C], S [H, V, K]. Returns O, S."""
    below = Q.new_ones(Q.shape[1], Q.shape[1]).tril(-1) > 0
    ratios = torch.where(below, alpha[..., None], 1.0).cumprod(-2).tril()  # decay from token j to token i
    gamma, beta = alpha.cumprod(-1)[..., None], beta[..., None]
    A = (beta * ratios * (K @ K.mT)).tril(-1)
    eye = torch.eye(A.shape[-1], device=A.device).expand_as(A)
    inverse = torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
    held = operand(S).mT
    T = operand(inverse * beta.mT)
    W = operand(T @ operand(gamma * K))
    U = T @ V - W @ held
    O = gamma * (Q @ held) + operand(ratios * (Q @ K.mT)) @ operand(U)
    return O, gamma[:, -1:] * S + operand(ratios[:, -1, :, None] * U).mT @ K


def operand(x):
    """As a bfloat16 operand of a matrix product whose sums are float32."""
    return x.bfloat16().float()
