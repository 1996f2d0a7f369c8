"""The gradients of the whole layer: the chain rule through its parts, which backward_around.py has one by one.

The forward pass is that of `layer.block`, each sequence with its states in tensors of its own:

    qkv, z, a, b = x W^T                            four projections
    m, conv_state' = silu(conv(qkv))                q, k, v are its channels
    o, state' = the rule on l2(q), l2(k), v, a, b
    y = rms(o) norm_weight silu(z)
    output = y W_out^T

and each line hands the gradient of what it returns on to what it was given, from the last line to the first. A product
Y = X W^T has dX = dY W and dW = dY^T X. Nothing is rounded on the way.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import backward_around, backward_second, chunkwise, gated_delta_net
from .backward_around import gated_rms_norm_backward
from .backward_chunkwise import Stored, as_it_is
from .convolution import conv1d_prefill
from .gated_delta_net import arithmetic_type, forget_gate_raw, l2_normalise, split_channels
from .layer import gated_rms_norm


class Parts(NamedTuple):
    """What runs the rule, and the gradients of rule and convolution."""

    rule: Callable[..., tuple[Tensor, Tensor]]
    rule_backward: Callable[..., tuple[Tensor, ...]]
    conv_backward: Callable[..., tuple[Tensor, ...]]


RECURRENCE = Parts(
    gated_delta_net.prefill_k_last, backward_around.prefill_backward_raw_gates, backward_around.conv1d_backward
)


def in_chunks(size: int, stored: Stored) -> Parts:
    """The same from the other derivations."""

    def rule(*args: Tensor | float | None) -> tuple[Tensor, Tensor]:
        return chunkwise.prefill_k_last(*args, chunk_size=size)  # type: ignore[arg-type]

    def rule_backward(*args: Tensor | float | None) -> tuple[Tensor, ...]:
        return backward_second.prefill_backward_raw_gates(*args, chunk_size=size, stored=stored)  # type: ignore[arg-type]

    return Parts(rule, rule_backward, backward_second.conv1d_backward)


def convolved(qkv: Tensor, weight: Tensor, cu_seqlens: Tensor, states: Tensor) -> Tensor:
    """`conv1d_prefill` where sequence n goes on from states[n]."""
    each = torch.arange(len(states), device=qkv.device)
    return conv1d_prefill(qkv, weight, None, cu_seqlens, states, each, torch.ones_like(each, dtype=torch.bool))[0]


def gradients(
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
    conv_state: Tensor,
    initial_state: Tensor,
    do: Tensor,
    dconv_ht: Tensor | None,
    dht: Tensor | None,
    parts: Parts,
) -> tuple[Tensor, ...]:
    """`layer_backward`, whatever its parts."""
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    dtype = arithmetic_type(x, *weights, conv_state, initial_state, do, dconv_ht, dht)
    X, dO, conv, state = (t.to(dtype) for t in (x, do, conv_state, initial_state.mT))
    W_qkv, W_z, W_a, W_b, W_conv, log_rate, bias, w, W_out = (t.to(dtype) for t in weights)
    H, K, V = initial_state.shape[1:]

    # The forward pass again.
    qkv, z, a, b = (X @ W.T for W in (W_qkv, W_z, W_a, W_b))
    z = z.unflatten(1, (H, V))
    q, k, v = split_channels(convolved(qkv, W_conv, cu_seqlens, conv), H, K, V)
    alpha, beta = forget_gate_raw(log_rate, a, bias), torch.sigmoid(b)
    o, _ = parts.rule(l2_normalise(q), l2_normalise(k), v, alpha, beta, cu_seqlens, state, None)
    y = gated_rms_norm(o, z, w, None).flatten(1)

    # Backwards, a line at a time.
    dy, dW_out = dO @ W_out, dO.T @ y
    d_o, dz, dw = gated_rms_norm_backward(o, z, w, None, dy.unflatten(1, (H, V)))
    dS = None if dht is None else dht.mT.to(dtype)
    dq, dk, dv, da, db, dA_log, ddt_bias, dh0 = parts.rule_backward(
        q, k, v, a, b, log_rate, bias, cu_seqlens, state, None, True, d_o, dS
    )  # fmt: skip
    dm = torch.cat([t.flatten(1) for t in (dq, dk, dv)], dim=1)
    dqkv, dW_conv, _, dconv = parts.conv_backward(qkv, W_conv, None, cu_seqlens, conv, dm, dconv_ht)
    of_products = [dqkv, dz.flatten(1), da, db]
    dx = sum(t @ W for t, W in zip(of_products, (W_qkv, W_z, W_a, W_b), strict=True))
    dW = [t.T @ X for t in of_products]
    assert isinstance(dx, Tensor)
    return (dx.to(x.dtype), *dW, dW_conv, dA_log, ddt_bias, dw, dW_out, dconv, dh0.mT.contiguous())


def layer_backward(
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
    conv_state: Tensor,
    initial_state: Tensor,
    do: Tensor,
    dconv_ht: Tensor | None,
    dht: Tensor | None,
) -> tuple[Tensor, ...]:
    """The gradients of `layer.layer_prefill`, where sequence n goes on from conv_state[n] and initial_state[n].

    conv_state, dconv_ht [num_seqs, 2 key_dim + value_dim, kernel_width - 1]; initial_state, dht [num_seqs, num_v_heads,
    K, V]. do is the gradient of the output; dconv_ht and dht are those of the states after the call, absent: zeros. The
    weights are as `layer_prefill` has them. Returns dx in x's type, and in that of the arithmetic the gradients of the
    nine weights, in their order, of conv_state and of initial_state. Rows behind the last sequence have zero gradients.
    """
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    return gradients(x, *weights, cu_seqlens, conv_state, initial_state, do, dconv_ht, dht, RECURRENCE)


def layer_backward_in_chunks(
    *, chunk_size: int = 64, stored: Stored = as_it_is, **inputs: Tensor
) -> tuple[Tensor, ...]:
    """As `layer_backward`, its parts from the other derivations; inputs by keyword."""
    return gradients(**inputs, parts=in_chunks(chunk_size, stored))
