"""The layer around Kimi Delta Attention: the executable specification.

Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025 (arXiv:2510.26692), section 4.
The norm is that of Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019
(arXiv:1910.07467), equation 4; its gate is a sigmoid.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded once at the end.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .kimi_delta_attention import arithmetic_type, l2_normalise, log_gate, prefill_k_last

RMS_EPSILON = 1e-5  # of the released models; inside the root: x * rsqrt(mean(x^2) + eps)
Rule = Callable[..., tuple[Tensor, Tensor]]  # `prefill_k_last`, or what computes the same


# --- the convolution --------------------------------------------------------------------------------------------


def convolve(window: Tensor, weight: Tensor) -> Tensor:
    """y[t, c] = silu(sum_j w[c, j] x[t - (W - 1) + j, c]), silu(x) = x sigmoid(x): w[:, W - 1] meets the token itself.

    window [W - 1 + T, C]: what comes before the first token, then the tokens; weight [C, W]. Returns y [T, C].
    """
    W = weight.shape[1]
    T = window.shape[0] - (W - 1)
    y = torch.zeros_like(window[:T])
    for j in range(W):
        y = y + weight[:, j] * window[j : j + T]
    return y * torch.sigmoid(y)


# --- the norm ---------------------------------------------------------------------------------------------------


def rms_normalise(x: Tensor, eps: float | None) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension; eps absent means 1e-5, 0.0 means 0.0."""
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + (RMS_EPSILON if eps is None else float(eps)))


# --- the layer --------------------------------------------------------------------------------------------------


def layer_prefill(
    x: Tensor,
    qkv_weight: Tensor,
    f_a_weight: Tensor,
    f_b_weight: Tensor,
    b_weight: Tensor,
    g_a_weight: Tensor,
    g_b_weight: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
    has_initial_state: Tensor,
    lower_bound: float | None,
    eps: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole block over a ragged batch, from hidden states to hidden states, both states in pools.

        q, k, v = silu(conv(x W_qkv^T))
        a = (x W_fa^T) W_fb^T                   z = (x W_ga^T) W_gb^T
        g = -exp(A_log) softplus(a + dt_bias),  or  lower_bound sigmoid(exp(A_log) (a + dt_bias))
        beta = sigmoid(x W_b^T)
        o = Kimi Delta Attention on l2(q), l2(k), v, g, beta, scale 1 / sqrt(K)
        output = (rms(o) * norm_weight * sigmoid(z)) W_out^T

    x [total_seq_len, hidden_size]; qkv_weight [2 key_dim + value_dim, hidden_size], its rows those of all query heads,
    all key heads, all value heads; f_a_weight, g_a_weight [D, hidden_size], f_b_weight, g_b_weight [num_v_heads D, D],
    D the size of a head; b_weight [num_v_heads, hidden_size]; conv_weight [2 key_dim + value_dim, kernel_width]; A_log
    [num_v_heads]; dt_bias [num_v_heads, D]; norm_weight [D]; out_weight [hidden_size, value_dim]. Sequence n reads
    conv_states [slots, 2 key_dim + value_dim, kernel_width - 1] at conv_slots[n] and recurrent_states [slots,
    num_v_heads, K, V] at state_slots[n] where has_initial_state[n], else zeros, and leaves its states there; an empty
    sequence leaves both as they are. Where the slots are -1 the output is zero. Returns output, in x's type, and both
    pools afterwards; the pools given stay as they were.
    """
    projections = (qkv_weight, f_a_weight, f_b_weight, b_weight, g_a_weight, g_b_weight)
    weights = (*projections, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    states = (conv_states, conv_slots, recurrent_states, state_slots, has_initial_state)
    return block(x, *weights, cu_seqlens, *states, lower_bound, eps, prefill_k_last)


def block(
    x: Tensor,
    qkv_weight: Tensor,
    f_a_weight: Tensor,
    f_b_weight: Tensor,
    b_weight: Tensor,
    g_a_weight: Tensor,
    g_b_weight: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
    has_initial_state: Tensor,
    lower_bound: float | None,
    eps: float | None,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_prefill`, whatever computes the rule of one sequence."""
    dtype = arithmetic_type(x, qkv_weight, conv_weight, A_log, dt_bias, conv_states, recurrent_states)
    (H, D, _), kept = recurrent_states.shape[1:], conv_weight.shape[1] - 1
    key_dim = (qkv_weight.shape[0] - H * D) // 2
    X = x.to(dtype)
    qkv, b = X @ qkv_weight.to(dtype).T, X @ b_weight.to(dtype).T
    a = ((X @ f_a_weight.to(dtype).T) @ f_b_weight.to(dtype).T).unflatten(1, (H, D))
    z = ((X @ g_a_weight.to(dtype).T) @ g_b_weight.to(dtype).T).unflatten(1, (H, D))

    y = torch.zeros(len(x), H * D, dtype=dtype, device=x.device)
    conv_after, after = conv_states.clone(), recurrent_states.clone()
    bounds = cu_seqlens.tolist()
    for n, (conv_slot, slot) in enumerate(zip(conv_slots.tolist(), state_slots.tolist(), strict=True)):
        t = slice(bounds[n], bounds[n + 1])
        if slot < 0 or t.start == t.stop:
            continue
        before, S = conv_states[conv_slot].T.to(dtype), recurrent_states[slot].mT.to(dtype)  # [W - 1, C], [H, V, K]
        if not has_initial_state[n]:
            before, S = torch.zeros_like(before), torch.zeros_like(S)
        window = torch.cat([before, qkv[t]])
        mixed = convolve(window, conv_weight.to(dtype)).split([key_dim, key_dim, H * D], dim=1)
        q, k, v = (rows.unflatten(1, (-1, D)) for rows in mixed)
        g = log_gate(A_log.to(dtype), a[t], dt_bias.to(dtype), lower_bound)  # [T, H, K]
        gates, whole = (g, torch.sigmoid(b[t])), torch.tensor([0, t.stop - t.start])
        o, S = rule(l2_normalise(q), l2_normalise(k), v, *gates, whole, S[None], None)
        y[t] = (rms_normalise(o, eps) * norm_weight.to(dtype) * torch.sigmoid(z[t])).flatten(1)
        conv_after[conv_slot] = window[len(window) - kept :].T.to(conv_after.dtype)
        after[slot] = S[0].mT.to(after.dtype)
    return (y @ out_weight.to(dtype).T).to(x.dtype), conv_after, after


def layer_decode(
    x: Tensor,
    qkv_weight: Tensor,
    f_a_weight: Tensor,
    f_b_weight: Tensor,
    b_weight: Tensor,
    g_a_weight: Tensor,
    g_b_weight: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
    lower_bound: float | None,
    eps: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token a sequence: `layer_prefill` of sequences of one token that all go on from their states.

    x [batch_size, hidden_size]; conv_slots, state_slots [batch_size]. Returns output and both pools afterwards.
    """
    projections = (qkv_weight, f_a_weight, f_b_weight, b_weight, g_a_weight, g_b_weight)
    weights = (*projections, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    each, carried = torch.arange(len(x) + 1), torch.ones(len(x), dtype=torch.bool)
    states = (conv_states, conv_slots, recurrent_states, state_slots, carried)
    return layer_prefill(x, *weights, each, *states, lower_bound, eps)
