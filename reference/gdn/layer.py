"""The layer around the gated delta rule: the executable specification.

Source: Yang, Kautz and Hatamizadeh, arXiv:2412.06464, section 3.4 and figure 1; the norm is that of Zhang and Sennrich,
"Root Mean Square Layer Normalization", NeurIPS 2019 (arXiv:1910.07467), equation 4.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded once at the end.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .convolution import conv1d_prefill, silu
from .gated_delta_net import arithmetic_type, forget_gate_raw, prefill_from_conv
from .kv_dims import update_gate_raw

RMS_EPSILON = 1e-6  # inside the root: x * rsqrt(mean(x^2) + eps)


# --- what follows the rule --------------------------------------------------------------------------------------


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension."""
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def gated_rms_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """The root mean square norm of what each head has read, times a weight a channel, times silu(z).

    x, z [.., value_head_dim]; weight [value_head_dim]; eps absent means 1e-6. The norm comes before the gate. Returns
    the shape and type of x.
    """
    dtype = arithmetic_type(x, z, weight)
    normed = rms_normalise(x.to(dtype), RMS_EPSILON if eps is None else eps)
    return (normed * weight.to(dtype) * silu(z.to(dtype))).to(x.dtype)


# --- between the projections ------------------------------------------------------------------------------------


def core(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
    has_initial_state: Tensor,
    rule: Callable[..., tuple[Tensor, Tensor]],
    allow_neg_eigval: bool = False,
    eps: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a layer does between its projections, nothing rounded on the way; `rule` runs on the convolution's rows.

        q, k, v = silu(conv(qkv))
        alpha = exp(-exp(A_log) softplus(a + dt_bias)),   beta = sigmoid(b)
        o = the gated delta rule on l2(q), l2(k), v, alpha, beta, scale 1 / sqrt(K)
        y = rms(o) * norm_weight * silu(z)

    With allow_neg_eigval, beta is twice that; `eps` is the norm's, 1e-6 where it is absent.
    qkv [total_seq_len, 2 key_dim + value_dim]; z [total_seq_len, value_dim]; a, b [total_seq_len, num_v_heads];
    recurrent_states [slots, num_v_heads, K, V]; the rest as `layer_prefill` has it. Where the slots are -1, y is zero.
    Returns y [total_seq_len, value_dim], float32 at least, and both pools afterwards.
    """
    dtype = arithmetic_type(qkv, z, a, b, conv_weight, A_log, dt_bias, norm_weight, conv_states, recurrent_states)
    H = recurrent_states.shape[1]
    mixed, conv_after = conv1d_prefill(
        qkv.to(dtype), conv_weight, conv_bias, cu_seqlens, conv_states, conv_slots, has_initial_state
    )  # fmt: skip
    alpha = forget_gate_raw(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype))
    beta = update_gate_raw(b.to(dtype), allow_neg_eigval)

    states = recurrent_states.clone()
    states[state_slots[(cu_seqlens.diff() > 0) & ~has_initial_state & (state_slots >= 0)].long()] = 0.0
    o, states = rule(mixed, alpha, beta, states, state_slots, cu_seqlens)

    y = gated_rms_norm(o.unflatten(1, (H, -1)), z.to(dtype).unflatten(1, (H, -1)), norm_weight, eps).flatten(1)
    skipped = torch.repeat_interleave(state_slots < 0, cu_seqlens.diff())
    return torch.where(skipped[:, None], 0.0, y), conv_after, states


def one_token_each(x: Tensor) -> tuple[Tensor, Tensor]:
    """cu_seqlens and has_initial_state of a batch [batch_size, ..] of tokens that all go on from their states."""
    ones = torch.ones(len(x), dtype=torch.bool, device=x.device)
    return torch.arange(len(x) + 1, device=x.device), ones


def core_decode(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """`core` of one token a sequence that goes on from its states, those of the rule [slots, num_v_heads, V, K].

    qkv [batch_size, 2 key_dim + value_dim]; conv_slots, state_slots [batch_size]. Returns output [batch_size,
    value_dim], in z's type, and both pools afterwards.
    """
    each, carried = one_token_each(qkv)
    states = (conv_states, conv_slots, recurrent_states.mT, state_slots, carried)
    y, conv_after, after = core(
        qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, each, *states, prefill_from_conv
    )  # fmt: skip
    return y.to(z.dtype), conv_after, after.mT.contiguous()


# --- the layer --------------------------------------------------------------------------------------------------


def layer_prefill(
    x: Tensor,
    qkv_weight: Tensor,
    z_weight: Tensor,
    a_weight: Tensor,
    b_weight: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole block over a ragged batch, from hidden states to hidden states, both states in pools.

        q, k, v = silu(conv(x W_qkv^T))         z = x W_z^T
        alpha = exp(-exp(A_log) softplus(x W_a^T + dt_bias))
        beta = sigmoid(x W_b^T)
        o = the gated delta rule on l2(q), l2(k), v, alpha, beta, scale 1 / sqrt(K)
        output = (rms(o) * norm_weight * silu(z)) W_out^T

    x [total_seq_len, hidden_size]; qkv_weight [2 key_dim + value_dim, hidden_size], its rows those of all query heads,
    all key heads, all value heads; z_weight [value_dim, hidden_size]; a_weight, b_weight [num_v_heads, hidden_size];
    conv_weight [2 key_dim + value_dim, kernel_width]; A_log, dt_bias [num_v_heads]; norm_weight [V]; out_weight
    [hidden_size, value_dim]. Sequence n reads conv_states [slots, 2 key_dim + value_dim, kernel_width - 1] at
    conv_slots[n] and recurrent_states [slots, num_v_heads, K, V] at state_slots[n] where has_initial_state[n], else
    zeros, and leaves its states there; an empty sequence leaves both as they are. Where the slots are -1 the output is
    zero. Returns output, in x's type, and both pools afterwards.
    """
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    states = (conv_states, conv_slots, recurrent_states, state_slots, has_initial_state)
    return block(x, *weights, cu_seqlens, *states, prefill_from_conv)


def block(
    x: Tensor,
    qkv_weight: Tensor,
    z_weight: Tensor,
    a_weight: Tensor,
    b_weight: Tensor,
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
    rule: Callable[..., tuple[Tensor, Tensor]],
    allow_neg_eigval: bool = False,
    eps: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_prefill`, whatever runs the rule on the convolution's rows; `allow_neg_eigval` and `eps` as in `core`."""
    dtype = arithmetic_type(x, qkv_weight, conv_weight, A_log, dt_bias, conv_states, recurrent_states)
    hidden = x.to(dtype)
    qkv, z, a, b = (hidden @ weight.to(dtype).T for weight in (qkv_weight, z_weight, a_weight, b_weight))
    states = (conv_states, conv_slots, recurrent_states, state_slots, has_initial_state)
    y, conv_after, after = core(
        qkv, z, a, b, conv_weight, None, A_log, dt_bias, norm_weight, cu_seqlens, *states, rule, allow_neg_eigval, eps
    )  # fmt: skip
    return (y @ out_weight.to(dtype).T).to(x.dtype), conv_after, after


def layer_decode(
    x: Tensor,
    qkv_weight: Tensor,
    z_weight: Tensor,
    a_weight: Tensor,
    b_weight: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token a sequence: `layer_prefill` of sequences of one token that all go on from their states.

    x [batch_size, hidden_size]; conv_slots, state_slots [batch_size]. Returns output and both pools afterwards.
    """
    each, carried = one_token_each(x)
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    return layer_prefill(x, *weights, each, conv_states, conv_slots, recurrent_states, state_slots, carried)


# --- the layer of OLMo Hybrid -----------------------------------------------------------------------------------


def layer_prefill_neg_eigval(
    x: Tensor,
    qkv_weight: Tensor,
    z_weight: Tensor,
    a_weight: Tensor,
    b_weight: Tensor,
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
    eps: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_prefill` with beta = 2 sigmoid(x W_b^T), and the norm's `eps`: 1e-6 where it is absent."""
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    states = (conv_states, conv_slots, recurrent_states, state_slots, has_initial_state)
    return block(x, *weights, cu_seqlens, *states, prefill_from_conv, allow_neg_eigval=True, eps=eps)


def layer_decode_neg_eigval(
    x: Tensor,
    qkv_weight: Tensor,
    z_weight: Tensor,
    a_weight: Tensor,
    b_weight: Tensor,
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
    eps: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token a sequence: `layer_prefill_neg_eigval` of sequences of one token that all go on from their states."""
    each, carried = one_token_each(x)
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    return layer_prefill_neg_eigval(
        x, *weights, each, conv_states, conv_slots, recurrent_states, state_slots, carried, eps
    )  # fmt: skip
