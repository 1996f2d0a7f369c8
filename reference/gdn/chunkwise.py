"""Gated Delta Net in its chunkwise (WY) form, derived independently of the recurrence.

Source: Yang, Wang, Zhang, Shen and Kim, "Parallelizing Linear Transformers with the Delta Rule over Sequence
Length", NeurIPS 2024 (arXiv:2406.06484), section 3.2, and its gated extension (arXiv:2412.06464, section 3.3).

One chunk of C tokens of one head; rows are tokens, S [V, K] is the state at its start. Write u_i for what token i
adds to the state (S_i = alpha_i S_{i-1} + u_i k_i^T). Unrolled inside the chunk, with gamma_i = alpha_1 .. alpha_i
and Gamma_ij = alpha_{j+1} .. alpha_i for i >= j,

    S_i = gamma_i S + sum_{j<=i} Gamma_ij u_j k_j^T
    u_i = beta_i (v_i - gamma_i S k_i - sum_{j<i} Gamma_ij (k_j . k_i) u_j)

The second line is a unit lower triangular system in the rows of U: with A = strict_lower(diag(beta) (Gamma * K K^T)),

    (I + A) U = diag(beta) (V - diag(gamma) K S^T)
    O  = scale (diag(gamma) Q S^T + lower(Gamma * Q K^T) U)
    S <- gamma_C S + U^T diag(Gamma_C,:) K

Gamma is formed by multiplication alone, never as a quotient gamma_i / gamma_j and never through a logarithm, so an
exact reset (alpha = 0) is exact and there is no range in which it overflows.

The functions take and return what their namesakes in gated_delta_net.py do. In float64 the two agree to 1e-12.
All chunks are prepared together; only the walk of the state over the chunks is serial.
"""

from collections.abc import Iterable
from functools import partial
from itertools import groupby, pairwise

import torch
from torch import Tensor

from .gated_delta_net import arithmetic_type, default_scale, expand_heads, l2_normalise, split_channels
from .layer import block


def decay_ratios(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Gamma [..., C, C], zero above the diagonal, and gamma [..., C], from alpha [..., C], by products alone."""
    C = alpha.shape[-1]
    # Column j multiplies up alpha from row j + 1 downwards: rows <= j contribute a one.
    below = torch.ones(C, C, dtype=torch.bool, device=alpha.device).tril(-1)
    factors = torch.where(below, alpha[..., :, None], torch.ones_like(alpha[..., :, None]))
    return torch.cumprod(factors, dim=-2).tril(), torch.cumprod(alpha, dim=-1)


def sequence(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, S: Tensor, scale: float, chunk_size: int,
    kept: Iterable[int] = (),
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """One sequence of T >= 1 tokens.

    q, k [H, T, K]; v [H, T, V]; alpha, beta [H, T]; S [H, V, K]; `kept`: tokens, rising. Returns O [H, T, V], the final
    S, and the state after each of the tokens kept.
    """
    H, T, _ = q.shape
    C = min(chunk_size, T)
    N = -(-T // C)
    pad = N * C - T

    def chunks(x: Tensor, fill: float) -> Tensor:  # [H, T, ...] -> [H, N, C, ...]
        tail = x.new_full((H, pad, *x.shape[2:]), fill)
        return torch.cat([x, tail], dim=1).reshape(H, N, C, *x.shape[2:])

    # A padding token does nothing: alpha = 1 keeps the state, beta = 0 writes nothing.
    Q, K, V = chunks(q, 0.0), chunks(k, 0.0), chunks(v, 0.0)
    alpha, beta = chunks(alpha, 1.0), chunks(beta, 0.0)

    Gamma, gamma = decay_ratios(alpha)  # [H, N, C, C], [H, N, C]
    A = beta[..., None] * (Gamma * (K @ K.mT)).tril(-1)
    eye = torch.eye(C, dtype=q.dtype, device=q.device)
    T_ = torch.linalg.solve_triangular(eye + A, torch.diag_embed(beta), upper=False, unitriangular=True)
    attention = Gamma * (Q @ K.mT)  # Gamma is lower triangular: causal
    to_end = Gamma[..., -1, :]  # decay from token j to the end of the chunk

    output = torch.empty_like(V)
    in_chunk = {n: [t % C for t in tokens] for n, tokens in groupby(kept, key=lambda t: t // C)}
    states: list[Tensor] = []
    for n in range(N):
        read_k = gamma[:, n, :, None] * (K[:, n] @ S.mT)  # [H, C, V]
        U = T_[:, n] @ (V[:, n] - read_k)
        read_q = gamma[:, n, :, None] * (Q[:, n] @ S.mT)
        output[:, n] = scale * (read_q + attention[:, n] @ U)
        for i in in_chunk.get(n, ()):  # S_i, wherever in a chunk
            states.append(gamma[:, n, i, None, None] * S + (Gamma[:, n, i, :, None] * U).mT @ K[:, n])
        S = gamma[:, n, -1, None, None] * S + (to_end[:, n, :, None] * U).mT @ K[:, n]
    return output.reshape(H, N * C, -1)[:, :T], S, states


def prefill_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `gated_delta_net.prefill_k_last`, in chunks of `chunk_size` tokens."""
    none, longer = torch.zeros_like(cu_seqlens), q.shape[0] + 1  # an interval that no sequence reaches
    output, state, _ = prefill_checkpoints(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, none, longer, chunk_size
    )  # fmt: skip
    return output, state


def prefill_k_last_kv_dims(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `kv_dims.prefill_k_last_kv_dims`, in chunks of `chunk_size` tokens."""
    return prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, chunk_size)


def prefill_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `gated_delta_net.prefill_checkpoints`, in chunks of `chunk_size` tokens, whatever the interval: the first
    equation has every state of a chunk."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    H = max(q.shape[1], v.shape[1])
    key_size, value_size = q.shape[-1], v.shape[-1]
    num_seqs = cu_seqlens.numel() - 1
    ones = torch.ones(q.shape[0], H, dtype=dtype, device=q.device)
    alpha = ones if g is None else g.to(dtype)
    write = ones if beta is None else beta.to(dtype)
    if initial_state is None:
        states = torch.zeros(num_seqs, H, value_size, key_size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)

    kept_starts = checkpoint_cu_starts.tolist()
    checkpoints = torch.zeros(kept_starts[-1], H, value_size, key_size, dtype=dtype, device=q.device)

    output = torch.zeros(q.shape[0], H, value_size, dtype=dtype, device=q.device)
    bounds = cu_seqlens.tolist()
    for n, (start, stop) in enumerate(pairwise(bounds)):
        if start == stop:
            continue
        Q, K, V = (expand_heads(x[start:stop].to(dtype), H).transpose(0, 1) for x in (q, k, v))  # [H, T, d]
        kept = range(checkpoint_interval - 1, stop - start, checkpoint_interval)
        gates, factor = (alpha[start:stop].T, write[start:stop].T), default_scale(key_size, scale)
        rows, states[n], inside = sequence(Q, K, V, *gates, states[n], factor, chunk_size, kept)
        output[start:stop] = rows.transpose(0, 1)
        if inside:
            checkpoints[kept_starts[n] : kept_starts[n + 1]] = torch.stack(inside)
    state_type = dtype if initial_state is None else initial_state.dtype
    return output.to(v.dtype), states.to(state_type), checkpoints.to(state_type)


def prefill_k_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `gated_delta_net.prefill_k_first`, in chunks of `chunk_size` tokens."""
    alpha = None if g is None else torch.exp(g.to(arithmetic_type(q, k, v, g, beta, initial_state)))
    initial = None if initial_state is None else initial_state.mT.contiguous()
    output, state = prefill_k_last(q, k, v, alpha, beta, cu_seqlens, initial, scale, chunk_size)
    return output, state.mT.contiguous()


def prefill_from_conv(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    recurrent_state: Tensor,
    slots: Tensor,
    row_offsets: Tensor,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `gated_delta_net.prefill_from_conv`, in chunks of `chunk_size` tokens."""
    dtype = arithmetic_type(qkv, decay, beta, recurrent_state)
    H, K, V = recurrent_state.shape[1:]
    q, k, v = split_channels(qkv.to(dtype), H, K, V)
    Q, K_, V_ = (x.transpose(0, 1) for x in (expand_heads(l2_normalise(q), H), expand_heads(l2_normalise(k), H), v))
    output, after = torch.zeros_like(v), recurrent_state.clone()
    for slot, (start, stop) in zip(slots.tolist(), pairwise(row_offsets.tolist()), strict=True):
        if slot < 0 or start == stop:
            continue
        t = slice(start, stop)
        alpha, write, S = decay[t].to(dtype).T, beta[t].to(dtype).T, recurrent_state[slot].mT.to(dtype)
        rows, S, _ = sequence(Q[:, t], K_[:, t], V_[:, t], alpha, write, S, default_scale(K, None), chunk_size)
        output[t], after[slot] = rows.transpose(0, 1), S.mT.to(after.dtype)
    return output.flatten(1), after


def layer_prefill_neg_eigval(*, chunk_size: int = 64, **inputs: Tensor | float | None) -> tuple[Tensor, Tensor, Tensor]:
    """As `layer.layer_prefill_neg_eigval`, the rule in chunks of `chunk_size` tokens; its inputs by keyword."""
    return block(**inputs, rule=partial(prefill_from_conv, chunk_size=chunk_size), allow_neg_eigval=True)


def layer_prefill(*, chunk_size: int = 64, **inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `layer.layer_prefill`, the rule in chunks of `chunk_size` tokens; its inputs by keyword."""
    return block(**inputs, rule=partial(prefill_from_conv, chunk_size=chunk_size))
