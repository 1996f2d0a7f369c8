"""The chunkwise form in the three stages that people develop one at a time: the executable specification.

Source and notation: chunkwise.py (arXiv:2406.06484, section 3.2; arXiv:2412.06464, section 3.3). A chunk has C = 64
tokens, the last one of a sequence what is left; S [V, K] is the state at its start, T = (I + A)^-1 diag(beta) with
A = strict_lower(diag(beta) (Gamma * K K^T)). The triangular system is solved before any state is known:

    chunk_wy        u = T V                 w = T diag(gamma) K              all chunks at once
    chunk_state     U = u - w S^T           S <- gamma_C S + U^T diag(Gamma_C,:) K       one after the other
    chunk_output    O = scale (diag(gamma) Q S^T + lower(Gamma * Q K^T) U)   all chunks at once

Every stage takes the gate per token, in log space: from cumulated ones -inf could not be taken off again. One after the
other they are the prefill of gated_delta_net.py, resets included: to 1e-12 in float64.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded where a stage ends.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from .chunkwise import decay_ratios
from .gated_delta_net import arithmetic_type, default_scale, expand_heads

CHUNK = 64


# --- chunks -----------------------------------------------------------------------------------------------------


def sequences(cu_seqlens: Tensor) -> Iterator[tuple[int, slice]]:
    """Number and rows of every sequence that has any."""
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if start < stop:
            yield n, slice(start, stop)


def chunks(x: Tensor, fill: float = 0.0) -> Tensor:
    """The rows of one sequence, head by head: [T, H, ..] -> [H, N, C, ..], the last chunk filled up.

    A token that fills up does nothing: alpha = 1 keeps the state, beta = 0 (u = w = 0) writes nothing.
    """
    T = x.shape[0]
    N = -(-T // CHUNK)
    tail = x.new_full((N * CHUNK - T, *x.shape[1:]), fill)
    return torch.cat([x, tail]).reshape(N, CHUNK, *x.shape[1:]).movedim(2, 0)


def rows(x: Tensor, T: int) -> Tensor:
    """The way back: [H, N, C, d] -> [T, H, d]."""
    return x.movedim(0, 2).reshape(-1, x.shape[0], x.shape[3])[:T]


# --- the stages -------------------------------------------------------------------------------------------------


def chunk_wy(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """u = T V and w = T diag(gamma) K of every chunk.

    k [total_seq_len, num_k_heads, K], v [.., num_v_heads, V]; g (log alpha, -inf legal) and beta [total_seq_len,
    num_v_heads]; cu_seqlens [num_seqs + 1]. Returns u [total_seq_len, num_v_heads, V] and w [.., K], in v's type.
    """
    dtype = arithmetic_type(k, v, g, beta)
    H = v.shape[1]
    u = torch.zeros(v.shape, dtype=dtype, device=v.device)
    w = torch.zeros(*v.shape[:2], k.shape[2], dtype=dtype, device=v.device)
    eye = torch.eye(CHUNK, dtype=dtype, device=v.device)
    for _, t in sequences(cu_seqlens):
        K, V = chunks(expand_heads(k[t].to(dtype), H)), chunks(v[t].to(dtype))  # [H, N, C, d]
        Gamma, gamma = decay_ratios(chunks(torch.exp(g[t].to(dtype)), 1.0))
        write = chunks(beta[t].to(dtype))  # [H, N, C]
        A = write[..., None] * (Gamma * (K @ K.mT)).tril(-1)
        T_ = torch.linalg.solve_triangular(eye + A, torch.diag_embed(write), upper=False, unitriangular=True)
        length = t.stop - t.start
        u[t] = rows(T_ @ V, length)
        w[t] = rows(T_ @ (gamma[..., None] * K), length)
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
    num_v_heads]; chunk_cu_starts [num_seqs + 1]: sequence n has chunks chunk_cu_starts[n] to chunk_cu_starts[n + 1];
    initial_state [num_seqs, num_v_heads, V, K]. Returns states [num_chunks, num_v_heads, V, K] and u_new = u - w S^T in
    u's type, and final_state in initial_state's. An empty sequence has no chunk, and ends in its initial state.
    """
    dtype = arithmetic_type(k, w, u, g, initial_state)
    H, V, K = u.shape[1], u.shape[2], k.shape[2]
    starts = chunk_cu_starts.tolist()
    states = torch.zeros(starts[-1], H, V, K, dtype=dtype, device=u.device)
    final = torch.zeros(len(starts) - 1, H, V, K, dtype=dtype, device=u.device)
    if initial_state is not None:
        final[:] = initial_state
    u_new = torch.zeros(u.shape, dtype=dtype, device=u.device)
    for n, t in sequences(cu_seqlens):
        S = final[n].clone()  # [H, V, K]
        K_, W, U = chunks(expand_heads(k[t].to(dtype), H)), chunks(w[t].to(dtype)), chunks(u[t].to(dtype))
        Gamma, gamma = decay_ratios(chunks(torch.exp(g[t].to(dtype)), 1.0))
        for c in range(U.shape[1]):
            states[starts[n] + c] = S
            U[:, c] = U[:, c] - W[:, c] @ S.mT
            to_end = Gamma[:, c, -1, :, None]
            S = gamma[:, c, -1, None, None] * S + (to_end * U[:, c]).mT @ K_[:, c]
        u_new[t], final[n] = rows(U, t.stop - t.start), S
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
    """O = scale (diag(gamma) Q S^T + lower(Gamma * Q K^T) U) of every chunk.

    q, k [total_seq_len, num_k_heads, K]; u_new [.., num_v_heads, V] and states [num_chunks, num_v_heads, V, K] as
    `chunk_state` gives them; g [.., num_v_heads]. Returns [total_seq_len, num_v_heads, V] in u_new's type.
    """
    dtype = arithmetic_type(q, k, u_new, states, g)
    H = u_new.shape[1]
    starts, factor = chunk_cu_starts.tolist(), default_scale(q.shape[2], scale)
    output = torch.zeros(u_new.shape, dtype=dtype, device=q.device)
    for n, t in sequences(cu_seqlens):
        Q, K = (chunks(expand_heads(x[t].to(dtype), H)) for x in (q, k))  # [H, N, C, K]
        Gamma, gamma = decay_ratios(chunks(torch.exp(g[t].to(dtype)), 1.0))
        S = states[starts[n] : starts[n + 1]].to(dtype).movedim(1, 0)  # [H, N, V, K]
        inside = (Gamma * (Q @ K.mT)) @ chunks(u_new[t].to(dtype))  # Gamma is lower triangular: causal
        output[t] = rows(factor * (gamma[..., None] * (Q @ S.mT) + inside), t.stop - t.start)
    return output.to(u_new.dtype)
