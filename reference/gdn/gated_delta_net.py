"""Gated Delta Net as a recurrence over tokens: the executable specification.

Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR 2025
(arXiv:2412.06464), equation 10. There, with a state S [V, K],

    S_t = S_{t-1} alpha_t (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,      o_t = S_t q_t.

`step` is that equation, regrouped so that the error is taken from the decayed state. Everything else here binds
it to the operator contracts in definitions/: heads, gates, normalisation, layouts, ragged batches.

Arithmetic is done in the widest float type among the inputs, float32 at least: given bfloat16 inputs it computes
in float32 and rounds once at the end; given float64 inputs it is the oracle that solutions are judged against.
"""

import math

import torch
from torch import Tensor

L2_EPSILON = 1e-6  # inside the root: x * rsqrt(sum(x^2) + eps)


# --- the recurrence ---------------------------------------------------------------------------------------------


def step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One token of the gated delta rule, for any number of leading (batch, head) dimensions.

    S [..., V, K]; q, k [..., K]; v [..., V]; alpha, beta [...]. Returns the output o [..., V] and the new state.
    """
    S = alpha[..., None, None] * S  # decay
    u = beta[..., None] * (v - read(S, k))  # error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]  # write
    o = scale * read(S, q)  # read, after the write
    return o, S


def read(S: Tensor, x: Tensor) -> Tensor:
    """S x: what the associative memory S [..., V, K] holds under the key x [..., K]; [..., V]."""
    return (S @ x[..., :, None])[..., 0]


# --- gates and normalisation ------------------------------------------------------------------------------------


def forget_gate_raw(A_log: Tensor, a: Tensor, dt_bias: Tensor) -> Tensor:
    """alpha = exp(-exp(A_log) * softplus(a + dt_bias)), in [0, 1]: Mamba-2's gate (arXiv:2405.21060)."""
    return torch.exp(-torch.exp(A_log) * softplus(a + dt_bias))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), exact for every x: no threshold above which it becomes the identity."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def l2_normalise(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6) over the last dimension."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + L2_EPSILON)


def default_scale(head_size: int, scale: float | None) -> float:
    """An absent scale means 1 / sqrt(head_size); 0.0 means 0.0."""
    return 1.0 / math.sqrt(head_size) if scale is None else float(scale)


# --- heads and types --------------------------------------------------------------------------------------------


def expand_heads(x: Tensor, num_sab_heads: int) -> Tensor:
    """[..., heads, d] -> [..., num_sab_heads, d]: head h of the result is head h // (num_sab_heads / heads)."""
    return x.repeat_interleave(num_sab_heads // x.shape[-2], dim=-2)


def arithmetic_type(*tensors: Tensor | None) -> torch.dtype:
    """The widest float type among the tensors, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def transposed(state: Tensor | None) -> Tensor | None:
    """[..., V, K] <-> [..., K, V]: the one difference between k_last and k_first."""
    return None if state is None else state.transpose(-1, -2).contiguous()


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Ragged batch of whole sequences, linear forget gate, states [num_seqs, num_sab_heads, V, K].

    q [total_seq_len, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V]; g (alpha itself, in [0, 1])
    and beta [total_seq_len, num_sab_heads]; cu_seqlens [num_seqs + 1]. Returns output [total_seq_len, num_o_heads,
    V] in v's type and final_state in initial_state's type. An empty sequence ends in its initial state.
    """
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    num_sab_heads = max(q.shape[1], v.shape[1])
    num_seqs = cu_seqlens.numel() - 1
    key_size, value_size = q.shape[-1], v.shape[-1]
    gate_shape = (q.shape[0], num_sab_heads)
    Q, K, V = (expand_heads(x.to(dtype), num_sab_heads) for x in (q, k, v))
    alpha = torch.ones(gate_shape, dtype=dtype, device=q.device) if g is None else g.to(dtype)
    write = torch.ones(gate_shape, dtype=dtype, device=q.device) if beta is None else beta.to(dtype)
    if initial_state is None:
        states = torch.zeros(num_seqs, num_sab_heads, value_size, key_size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    factor = default_scale(key_size, scale)

    output = torch.zeros(q.shape[0], num_sab_heads, value_size, dtype=dtype, device=q.device)
    bounds = cu_seqlens.tolist()
    for n in range(num_seqs):
        S = states[n]  # [H, V, K]
        for t in range(bounds[n], bounds[n + 1]):
            output[t], S = step(S, Q[t], K[t], V[t], alpha[t], write[t], factor)
        states[n] = S
    state_type = dtype if initial_state is None else initial_state.dtype
    return output.to(v.dtype), states.to(state_type)


def prefill_k_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """`prefill_k_last` with states [.., K, V] and g in log space: alpha = exp(g); g = -inf is an exact reset."""
    alpha = None if g is None else torch.exp(g.to(arithmetic_type(q, k, v, g, beta, initial_state)))
    output, state = prefill_k_last(q, k, v, alpha, beta, cu_seqlens, transposed(initial_state), scale)
    return output, state.transpose(-1, -2).contiguous()


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
) -> tuple[Tensor, Tensor, Tensor]:
    """`prefill_k_last`, and the state after every checkpoint_interval tokens of each sequence.

    A sequence is cut after every so many tokens: where a piece is whole, the state at its end is a checkpoint, and the
    next piece starts from it. Those of sequence n are rows checkpoint_cu_starts[n] to checkpoint_cu_starts[n + 1], a
    tensor [num_seqs + 1]. Returns output, final_state and checkpoints [num_checkpoints, num_sab_heads, V, K], in
    initial_state's type.
    """
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    num_sab_heads, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    bounds, starts = cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    if initial_state is None:
        states = torch.zeros(len(bounds) - 1, num_sab_heads, size, size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    checkpoints = torch.zeros(starts[-1], num_sab_heads, size, size, dtype=dtype, device=q.device)

    output = torch.zeros(q.shape[0], num_sab_heads, size, dtype=v.dtype, device=q.device)
    for n in range(len(bounds) - 1):
        kept = starts[n]
        for start in range(bounds[n], bounds[n + 1], checkpoint_interval):
            stop = min(start + checkpoint_interval, bounds[n + 1])
            piece = slice(start, stop)
            output[piece], states[n : n + 1] = prefill_k_last(
                q[piece], k[piece], v[piece], None if g is None else g[piece], None if beta is None else beta[piece],
                torch.tensor([0, stop - start]), states[n : n + 1], scale,
            )  # fmt: skip
            if stop - start == checkpoint_interval:
                checkpoints[kept] = states[n]
                kept += 1
    state_type = dtype if initial_state is None else initial_state.dtype
    return output, states.to(state_type), checkpoints.to(state_type)


# --- prefill straight from the convolution ----------------------------------------------------------------------


def split_channels(qkv: Tensor, num_v_heads: int, K: int, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of a convolution, [.., 2 key_dim + value_dim], as q, k [.., num_k_heads, K] and v [.., num_v_heads, V]:
    all query heads, then all key heads, then all value heads."""
    value_dim = num_v_heads * V
    key_dim = (qkv.shape[-1] - value_dim) // 2
    q, k, v = qkv.split([key_dim, key_dim, value_dim], dim=-1)
    return q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (-1, V))


def prefill_from_conv(
    qkv: Tensor, decay: Tensor, beta: Tensor, recurrent_state: Tensor, slots: Tensor, row_offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """`prefill_k_first` from one packed row a token, L2 norm and scale inside, on states in a pool.

    qkv [total_seq_len, 2 key_dim + value_dim]; decay (alpha itself) and beta [total_seq_len, num_v_heads];
    recurrent_state [num_slots, num_v_heads, K, V]; slots [num_seqs], -1 for a sequence that is skipped; row_offsets
    [num_seqs + 1]. The scale is 1 / sqrt(K). Returns output [total_seq_len, value_dim], float32 at least, and the pool
    afterwards; an empty sequence leaves its slot as it is.
    """
    dtype = arithmetic_type(qkv, decay, beta, recurrent_state)
    H, K, V = recurrent_state.shape[1:]
    q, k, v = split_channels(qkv.to(dtype), H, K, V)
    q, k = (expand_heads(l2_normalise(x), H) for x in (q, k))
    alpha, write, bounds = decay.to(dtype), beta.to(dtype), row_offsets.tolist()
    output, after = torch.zeros_like(v), recurrent_state.clone()
    for n, slot in enumerate(slots.tolist()):
        if slot < 0 or bounds[n] == bounds[n + 1]:
            continue
        S = recurrent_state[slot].mT.to(dtype)  # [H, V, K]
        for t in range(bounds[n], bounds[n + 1]):
            output[t], S = step(S, q[t], k[t], v[t], alpha[t], write[t], default_scale(K, None))
        after[slot] = S.mT.to(after.dtype)
    return output.flatten(1), after


# --- decode -----------------------------------------------------------------------------------------------------


def decode_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """One token a sequence, raw gates, state [batch_size, num_sab_heads, V, K].

    q [batch_size, 1, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V]; A_log, dt_bias
    [num_sab_heads]; a, b [batch_size, 1, num_sab_heads]. Returns output [batch_size, 1, num_o_heads, V] in v's
    type and new_state in state's type.
    """
    dtype = arithmetic_type(q, k, v, state, A_log, a, dt_bias, b)
    num_sab_heads = state.shape[1]
    Q, K, V = (x[:, 0].to(dtype) for x in (q, k, v))  # [B, H, d]
    if use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    Q, K, V = (expand_heads(x, num_sab_heads) for x in (Q, K, V))
    alpha = forget_gate_raw(A_log.to(dtype), a[:, 0].to(dtype), dt_bias.to(dtype))  # [B, H]
    beta = torch.sigmoid(b[:, 0].to(dtype))
    o, S = step(state.to(dtype), Q, K, V, alpha, beta, default_scale(q.shape[-1], scale))
    return o[:, None].to(v.dtype), S.to(state.dtype)


def decode_k_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` with state [batch_size, num_sab_heads, K, V]."""
    S = state.transpose(-1, -2).contiguous()
    output, S = decode_k_last(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return output, S.transpose(-1, -2).contiguous()


def decode_packed_k_last(
    mixed_qkv: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` with q, k and v side by side, as the convolution before them leaves a row.

    mixed_qkv [batch_size, 2 key_dim + value_dim]: all query heads, then all key heads, then all value heads; a, b
    [batch_size, num_sab_heads]. Returns output [batch_size, num_o_heads, V] and new_state.
    """
    batch_size, num_v_heads, size = state.shape[:3]  # as many value heads as states: GVA
    value_dim = num_v_heads * size
    key_dim = (mixed_qkv.shape[1] - value_dim) // 2
    q, k, v = (x.reshape(batch_size, 1, -1, size) for x in mixed_qkv.split([key_dim, key_dim, value_dim], dim=1))
    output, S = decode_k_last(q, k, v, state, A_log, a[:, None], dt_bias, b[:, None], scale, use_qk_l2norm)
    return output[:, 0], S


# --- decode from a pool of states -------------------------------------------------------------------------------


def decode_pool_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` on states in a pool [num_slots, num_sab_heads, V, K].

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]; where they are -1 the row is
    skipped: its output is zero. Returns output and the pool afterwards; the pool given stays as it was.
    """
    output, after = torch.zeros_like(v), pool.clone()
    rows = (read_slots >= 0).nonzero()[:, 0]
    read, written = read_slots[rows].long(), write_slots[rows].long()
    o, S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read], A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm
    )  # fmt: skip
    output[rows], after[written] = o, S
    return output, after


# --- verify: several draft tokens a sequence --------------------------------------------------------------------


def verify_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """Speculative decoding: T draft tokens a sequence, the state after each in a slot of its own.

    q [batch_size, T, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V]; a, b [batch_size, T,
    num_sab_heads]; pool [num_slots, num_sab_heads, V, K]. How many of the tokens are accepted is known only afterwards,
    and given to the next call: accepted [batch_size] is that count of the step before. Row n starts from slot
    state_slots[n, accepted[n] - 1], where that step left the state after its last accepted token; with accepted[n] = 0
    from initial_slots[n]. The state after token t goes to slot state_slots[n, t]. A row whose slots are -1 is skipped:
    its output is zero. Returns output [batch_size, T, num_o_heads, V] and the pool afterwards.
    """
    output, after = torch.zeros_like(v), pool.clone()
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    start = torch.where(accepted > 0, last, initial_slots)
    rows = (initial_slots >= 0).nonzero()[:, 0]
    S = pool[start[rows].long()].to(arithmetic_type(q, pool))  # rounded only where it is stored
    for t in range(q.shape[1]):
        one = slice(t, t + 1)
        o, S = decode_k_last(
            q[rows, one], k[rows, one], v[rows, one], S, A_log, a[rows, one], dt_bias, b[rows, one], scale,
            use_qk_l2norm,
        )  # fmt: skip
        output[rows, one] = o
        after[state_slots[rows, t].long()] = S.to(pool.dtype)
    return output, after
