"""Kimi Delta Attention as a recurrence over tokens: the executable specification.

Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025 (arXiv:2510.26692), equation 1.
There, with a state S [K, V] and a decay alpha_t of its own for each key channel,

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T,      o_t = S_t^T q_t.

`step` is that equation with S [V, K], regrouped so that the error is taken from the decayed state. Everything else here
binds it to the operator contracts in definitions/kda: heads, gates, normalisation, layouts, ragged batches.

Arithmetic is done in the widest float type among the inputs, float32 at least: given bfloat16 inputs it computes in
float32 and rounds once at the end; given float64 inputs it is the oracle that solutions are judged against.
"""

import math

import torch
from torch import Tensor

L2_EPSILON = 1e-6  # inside the root: x * rsqrt(sum(x^2) + eps)


# --- the recurrence ---------------------------------------------------------------------------------------------


def step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One token, for any number of leading (batch, head) dimensions.

    S [..., V, K]; q, k, alpha [..., K]; v [..., V]; beta [...]. Returns the output o [..., V] and the new state.
    """
    S = alpha[..., None, :] * S  # decay, each key channel by its own
    u = beta[..., None] * (v - read(S, k))  # error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]  # write
    o = scale * read(S, q)  # read, after the write
    return o, S


def read(S: Tensor, x: Tensor) -> Tensor:
    """S x: what the associative memory S [..., V, K] holds under the key x [..., K]; [..., V]."""
    return (S @ x[..., :, None])[..., 0]


# --- gates and normalisation ------------------------------------------------------------------------------------


def log_gate(A_log: Tensor, a: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """g [..., H, K], at most 0, from raw gates a [..., H, K], dt_bias [H, K] and A_log [H].

    Without a lower bound, None or 0, g = -exp(A_log) softplus(a + dt_bias). With one, which is negative,
    g = lower_bound sigmoid(exp(A_log) (a + dt_bias)): the bound is a factor, nothing is clamped.
    """
    rate, x = torch.exp(A_log)[:, None], a + dt_bias
    return float(lower_bound) * torch.sigmoid(rate * x) if lower_bound else -rate * softplus(x)


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


def expand_heads(x: Tensor, num_v_heads: int) -> Tensor:
    """[..., heads, d] -> [..., num_v_heads, d]: head h of the result is head h // (num_v_heads / heads)."""
    return x.repeat_interleave(num_v_heads // x.shape[-2], dim=-2)


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
    """Ragged batch of whole sequences, gates in log space, states [num_seqs, num_v_heads, V, K].

    q, k [total_seq_len, num_k_heads, K], v [.., num_v_heads, V]; g [total_seq_len, num_v_heads, K], at most 0, where
    minus infinity resets a channel exactly; beta [total_seq_len, num_v_heads]; cu_seqlens [num_seqs + 1]. Returns
    output [total_seq_len, num_v_heads, V] in v's type and final_state in initial_state's type. An empty sequence ends
    in its initial state.
    """
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    T, H = v.shape[:2]
    num_seqs, key_size, value_size = cu_seqlens.numel() - 1, q.shape[-1], v.shape[-1]
    Q, K, V = (expand_heads(x.to(dtype), H) for x in (q, k, v))
    gates = torch.zeros(T, H, key_size, dtype=dtype, device=q.device) if g is None else g.to(dtype)
    alpha = torch.exp(gates)
    write = torch.ones(T, H, dtype=dtype, device=q.device) if beta is None else beta.to(dtype)
    if initial_state is None:
        states = torch.zeros(num_seqs, H, value_size, key_size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    factor = default_scale(key_size, scale)

    output = torch.zeros(T, H, value_size, dtype=dtype, device=q.device)
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
    """`prefill_k_last` with states [num_seqs, num_v_heads, K, V]."""
    output, state = prefill_k_last(q, k, v, g, beta, cu_seqlens, transposed(initial_state), scale)
    return output, state.transpose(-1, -2).contiguous()


def prefill_raw_gates(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """`prefill_k_last` as a model calls it: raw gates, and q and k normalised unless use_qk_l2norm is false.

    A_log [num_v_heads], dt_bias [num_v_heads, K]; a [total_seq_len, num_v_heads, K], b [total_seq_len, num_v_heads].
    """
    dtype = arithmetic_type(q, k, v, A_log, a, dt_bias, b, initial_state)
    Q, K = q.to(dtype), k.to(dtype)
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    g = log_gate(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype), lower_bound)
    beta = 1.0 / (1.0 + torch.exp(-b.to(dtype)))  # torch.sigmoid rounds the end of a tensor in another way
    return prefill_k_last(Q, K, v, g, beta, cu_seqlens, initial_state, scale)


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
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """One token a sequence, raw gates, state [batch_size, num_v_heads, V, K].

    q, k [batch_size, 1, num_k_heads, K], v [.., num_v_heads, V]; A_log [num_v_heads], dt_bias [num_v_heads, K]; a
    [batch_size, 1, num_v_heads, K], b [batch_size, 1, num_v_heads]; q and k are normalised unless use_qk_l2norm is
    false. Returns output [batch_size, 1, num_v_heads, V] in v's type and new_state in state's type.
    """
    dtype = arithmetic_type(q, k, v, state, A_log, a, dt_bias, b)
    Q, K, V = (x[:, 0].to(dtype) for x in (q, k, v))  # [B, H, d]
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    Q, K, V = (expand_heads(x, state.shape[1]) for x in (Q, K, V))
    g = log_gate(A_log.to(dtype), a[:, 0].to(dtype), dt_bias.to(dtype), lower_bound)  # [B, H, K]
    beta = torch.sigmoid(b[:, 0].to(dtype))
    o, S = step(state.to(dtype), Q, K, V, torch.exp(g), beta, default_scale(q.shape[-1], scale))
    return o[:, None].to(v.dtype), S.to(state.dtype)
