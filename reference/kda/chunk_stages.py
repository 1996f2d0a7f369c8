"""The chunkwise form in the three stages that people develop one at a time: the executable specification.

Source and notation: chunkwise.py. A chunk has C = 64 tokens, the last one of a sequence what is left; S [V, K] is the
state at its start. gamma_i and Gamma_ij are vectors of key channels, KK_ij = sum_c k_ic Gamma_ijc k_jc, QK the same of
q_i and k_j; T = (I + A)^-1 diag(beta) with A = strict_lower(diag(beta) KK). The triangular system is solved before any
state is known:

    chunk_wy        u = T V                 w = T (gamma * K)                       all chunks at once
    chunk_state     U = u - w S^T           S <- S Diag(gamma_C) + U^T (Gamma_C,: * K)      one after the other
    chunk_output    O = scale ((gamma * Q) S^T + lower(QK) U)                       all chunks at once

Every stage takes the gate per token, in log space: from cumulated ones -inf could not be taken off again. Decays are
formed by multiplication alone, so no gate overflows and a reset is exact. One after the other the stages are the
prefill of kimi_delta_attention.py, resets included: to 1e-12 in float64.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded where a stage ends.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from .chunkwise import decay_ratios
from .kimi_delta_attention import arithmetic_type, default_scale, expand_heads

CHUNK = 64


# --- chunks -----------------------------------------------------------------------------------------------------


def chunks(cu_seqlens: Tensor) -> Iterator[tuple[int, slice]]:
    """The sequence and the rows of every chunk, in order."""
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        for first in range(start, stop, CHUNK):
            yield n, slice(first, min(first + CHUNK, stop))


def by_heads(x: Tensor, t: slice, dtype: torch.dtype, num_v_heads: int) -> Tensor:
    """The rows t of x, head by head, key heads repeated: [T, heads, d] -> [H, C, d]."""
    return expand_heads(x[t].to(dtype), num_v_heads).transpose(0, 1)


def decays(g: Tensor, t: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gamma [H, C, C, K], zero for i < j, and gamma [H, C, K] of the rows t of log gates g [T, H, K]."""
    return decay_ratios(torch.exp(g[t].to(dtype)).transpose(0, 1))


def scores(X: Tensor, K: Tensor, Gamma: Tensor) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc: [H, C, C] from [H, C, K] and Gamma [H, C, C, K], zero above the diagonal as it is."""
    return ((Gamma * K[:, None]) @ X[..., None])[..., 0]


# --- the stages -------------------------------------------------------------------------------------------------


def chunk_wy(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """u = T V and w = T (gamma * K) of every chunk.

    k [total_seq_len, num_k_heads, K], v [.., num_v_heads, V]; g [total_seq_len, num_v_heads, K] (log alpha, -inf legal)
    and beta [total_seq_len, num_v_heads]; cu_seqlens [num_seqs + 1]. Returns u [total_seq_len, num_v_heads, V] and w
    [.., K], in v's type.
    """
    dtype = arithmetic_type(k, v, g, beta)
    H = v.shape[1]
    u = torch.zeros(v.shape, dtype=dtype, device=v.device)
    w = torch.zeros(*v.shape[:2], k.shape[2], dtype=dtype, device=v.device)
    for _, t in chunks(cu_seqlens):
        K, V = (by_heads(x, t, dtype, H) for x in (k, v))  # [H, C, d]
        Gamma, gamma = decays(g, t, dtype)
        write = beta[t].to(dtype).T  # [H, C]
        A = write[..., None] * scores(K, K, Gamma).tril(-1)
        eye = torch.eye(K.shape[1], dtype=dtype, device=v.device)
        T = torch.linalg.solve_triangular(eye + A, torch.diag_embed(write), upper=False, unitriangular=True)
        u[t] = (T @ V).transpose(0, 1)
        w[t] = (T @ (gamma * K)).transpose(0, 1)
    return u.to(v.dtype), w.to(v.dtype)


def chunk_state(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    g: Tensor,
    cu_seqlens: Tensor,
    chunk_cu_starts: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The walk over the chunks of each sequence: the state at the start of each, and what each token adds to it.

    k [total_seq_len, num_k_heads, K]; w [.., num_v_heads, K] and u [.., V] as `chunk_wy` gives them, g [..,
    num_v_heads, K]; chunk_cu_starts [num_seqs + 1]: sequence n has chunks chunk_cu_starts[n] to chunk_cu_starts[n + 1];
    initial_state [num_seqs, num_v_heads, V, K]. Returns states [num_chunks, num_v_heads, V, K] and u_new = u - w S^T in
    u's type, and final_state in initial_state's. An empty sequence has no chunk, and ends in its initial state.
    """
    dtype = arithmetic_type(k, w, u, g, initial_state)
    H, V, size = u.shape[1], u.shape[2], k.shape[2]
    starts = chunk_cu_starts.tolist()
    states = torch.zeros(starts[-1], H, V, size, dtype=dtype, device=u.device)
    final = torch.zeros(len(starts) - 1, H, V, size, dtype=dtype, device=u.device)
    if initial_state is not None:
        final[:] = initial_state
    u_new = torch.zeros(u.shape, dtype=dtype, device=u.device)
    for c, (n, t) in enumerate(chunks(cu_seqlens)):
        S = final[n]  # [H, V, K]
        states[c] = S
        K, W, U = (by_heads(x, t, dtype, H) for x in (k, w, u))
        Gamma, gamma = decays(g, t, dtype)
        U = U - W @ S.mT
        final[n] = gamma[:, -1, None, :] * S + U.mT @ (Gamma[:, -1] * K)
        u_new[t] = U.transpose(0, 1)
    return states.to(u.dtype), u_new.to(u.dtype), final.to(dtype if initial_state is None else initial_state.dtype)


def chunk_output(
    q: Tensor,
    k: Tensor,
    u_new: Tensor,
    states: Tensor,
    g: Tensor,
    cu_seqlens: Tensor,
    chunk_cu_starts: Tensor,
    scale: float | None,
) -> Tensor:
    """O = scale ((gamma * Q) S^T + lower(QK) U) of every chunk.

    q, k [total_seq_len, num_k_heads, K]; u_new [.., num_v_heads, V] and states [num_chunks, num_v_heads, V, K] as
    `chunk_state` gives them; g [.., num_v_heads, K]. Returns [total_seq_len, num_v_heads, V] in u_new's type.
    """
    dtype = arithmetic_type(q, k, u_new, states, g)
    H, factor = u_new.shape[1], default_scale(q.shape[2], scale)
    output = torch.zeros(u_new.shape, dtype=dtype, device=q.device)
    for c, (_, t) in enumerate(chunks(cu_seqlens)):
        Q, K, U = (by_heads(x, t, dtype, H) for x in (q, k, u_new))
        Gamma, gamma = decays(g, t, dtype)
        S = states[c].to(dtype)  # [H, V, K]
        output[t] = (factor * ((gamma * Q) @ S.mT + scores(Q, K, Gamma) @ U)).transpose(0, 1)
    return output.to(u_new.dtype)
