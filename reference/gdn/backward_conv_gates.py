"""The gradients of `convolution.conv_gates_prefill`: of all that stands between the projections and the rule.

They are those of backward_around.py in a row: of both gates, of the L2 norm of q and k, and of the convolution.
"""

from itertools import pairwise

import torch
from torch import Tensor

from .backward_around import conv1d_backward, forget_gate_backward, l2_normalise_backward, update_gate_backward
from .convolution import convolve
from .gated_delta_net import arithmetic_type, forget_gate_raw, split_channels


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, states: Tensor | None) -> Tensor:
    """`convolve` of each sequence from a state of its own: x [total_seq_len, C], states [num_seqs, C, W - 1] or zeros.
    Rows behind the last sequence are zeros."""
    y, (C, W) = torch.zeros_like(x), weight.shape
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        state = x.new_zeros(W - 1, C) if states is None else states[n].T
        y[start:stop] = convolve(torch.cat([state, x[start:stop]]), weight, bias)
    return y


def conv_gates_backward(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dg: Tensor,
    dbeta: Tensor,
    dht: Tensor | None,
) -> tuple[Tensor, ...]:
    """The forward pass, each sequence from a state of its own, is

        y = silu(conv(x)),   split into y_q, y_k and v              q, k = l2(y_q), l2(y_k)
        alpha = exp(-exp(A_log) softplus(a + dt_bias))              beta = sigmoid(b)

    dg is the gradient of alpha itself, [total_seq_len, num_v_heads] as a, b and dbeta are; that of its logarithm is
    alpha dg. x [total_seq_len, C]; dq, dk [total_seq_len, num_k_heads, D]; dv [.., num_v_heads, D]; the rest as
    `conv1d_backward` has it. Returns dx, da and db in the types of x, a and b: first dx, dconv_weight and dconv_bias,
    then da, db, dA_log and ddt_bias, then dh0. Tokens behind the last sequence have zero gradients, and no part in
    sums.
    """
    dtype = arithmetic_type(x, conv_weight, conv_bias, a, b, A_log, dt_bias, initial_state, dq, dk, dv, dg, dbeta, dht)
    X, w, A, B, rate, step_bias, dQ, dK, dV = (
        t.to(dtype) for t in (x, conv_weight, a, b, A_log, dt_bias, dq, dk, dv)
    )  # fmt: skip
    bias, states = (None if t is None else t.to(dtype) for t in (conv_bias, initial_state))
    behind = (torch.arange(len(x), device=x.device) >= cu_seqlens[-1])[:, None]
    dalpha, dbeta = (t.to(dtype).masked_fill(behind, 0.0) for t in (dg, dbeta))

    H, D = dv.shape[1:]
    y_q, y_k, _ = split_channels(convolved(X, w, bias, cu_seqlens, states), H, D, D)
    dy = (l2_normalise_backward(y_q, dQ), l2_normalise_backward(y_k, dK), dV)
    channels = torch.cat([part.flatten(1) for part in dy], dim=1)
    dx, dconv_weight, dconv_bias, dh0 = conv1d_backward(X, w, bias, cu_seqlens, states, channels, dht)

    alpha = forget_gate_raw(rate, A, step_bias)
    da, dA_log, ddt_bias = forget_gate_backward(rate, A, step_bias, alpha * dalpha)
    db = update_gate_backward(B, dbeta)
    return dx.to(x.dtype), dconv_weight, dconv_bias, da.to(a.dtype), db.to(b.dtype), dA_log, ddt_bias, dh0
