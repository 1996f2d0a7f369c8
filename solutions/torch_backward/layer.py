"""The gradients of the whole layer in plain PyTorch: the forward pass again, then the parts of around.py in reverse."""

import torch
from around import convolution, gated_norm, raw_gates, silu_and_slope
from checks import require, require_bounds, without_rest
from kernel import CHUNK, Tokens, forward, next_state, true_float32
from torch import Tensor


def convolved(x: Tensor, weight: Tensor, cu_seqlens: Tensor, states: Tensor) -> Tensor:
    """silu of the convolution of each sequence, which goes on from its state."""
    taps, bounds, rows = weight.shape[1], cu_seqlens.tolist(), []
    for n, state in enumerate(states):
        window = torch.cat([state.T, x[bounds[n] : bounds[n + 1]]])
        length = bounds[n + 1] - bounds[n]
        rows.append(sum(weight[:, tap] * window[tap : tap + length] for tap in range(taps)))
    rows.append(torch.zeros_like(x[bounds[-1] :]))  # of no sequence
    return silu_and_slope(torch.cat(rows))[0]


def read_by_rule(tokens: Tokens, cu_seqlens: Tensor, states: Tensor) -> Tensor:
    """What the queries read, [H, T, V]: the chunks of the forward pass, states [N, H, V, K]."""
    bounds, o = cu_seqlens.tolist(), torch.zeros_like(tokens.v)
    for n, S in enumerate(states):
        for start in range(bounds[n], bounds[n + 1], CHUNK):
            stop = min(start + CHUNK, bounds[n + 1])
            chunk = tokens.part(start, stop)
            f = forward(chunk, S)
            o[:, start:stop] = f.gamma * (chunk.q @ S.mT) + (f.Gamma * (chunk.q @ chunk.k.mT)) @ f.U
            S = next_state(chunk, f, S)
    return o


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def layer(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_state, initial_state, do, dconv_ht, dht,
):  # fmt: skip
    """gdn_layer_backward: x, do [T, hidden], weights [out, in], conv_state and dconv_ht [num_seqs, C, W - 1], states
    and dht [num_seqs, H, K, V]. Returns the gradient of x in its type, and those of weights and states in float32.
    Source: arXiv:2412.06464, section 3.4 and figure 1. Raises ValueError for shapes that do not fit."""
    require("do", do, x.shape)
    _, total = require_bounds(cu_seqlens, len(x))
    x, do = without_rest(x, total), without_rest(do, total)
    X, dO, conv, S = (t.float() for t in (x, do, conv_state, initial_state.mT))
    W_qkv, W_z, W_a, W_b, W_conv, w, W_out = (
        t.float() for t in (qkv_weight, z_weight, a_weight, b_weight, conv_weight, norm_weight, out_weight)
    )
    H, K, V = initial_state.shape[1:]
    with true_float32():
        qkv, z, a, b = (X @ W.T for W in (W_qkv, W_z, W_a, W_b))
        key_dim = (qkv.shape[1] - H * V) // 2
        q, k, v = convolved(qkv, W_conv, cu_seqlens, conv).split([key_dim, key_dim, H * V], dim=1)
        q, k, v, z = q.unflatten(1, (-1, K)), k.unflatten(1, (-1, K)), v.unflatten(1, (H, V)), z.unflatten(1, (H, V))

        step = a + dt_bias.float()
        alpha = torch.exp(-A_log.float().exp() * (step.clamp(min=0) + torch.log1p(torch.exp(-step.abs()))))
        by_head = [t.repeat_interleave(H // t.shape[1], dim=1).transpose(0, 1) for t in (K**-0.5 * unit(q), unit(k), v)]
        tokens = Tokens(*by_head, alpha.T, torch.sigmoid(b).T, torch.zeros_like(by_head[2]))
        o = read_by_rule(tokens, cu_seqlens, S).transpose(0, 1)
        y = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * w * silu_and_slope(z)[0]

        dy = (dO @ W_out).unflatten(1, (H, V))
        dW_out = dO.T @ y.flatten(1)
        d_o, dz, dw = gated_norm(o, z, w, None, dy)
        dS = None if dht is None else dht.mT
        dq, dk, dv, da, db, dA_log, ddt_bias, dh0 = raw_gates(
            q, k, v, a, b, A_log, dt_bias, cu_seqlens, S, None, True, d_o, dS
        )  # fmt: skip
        dmixed = torch.cat([t.flatten(1) for t in (dq, dk, dv)], dim=1)
        dqkv, dW_conv, _, dconv = convolution(qkv, W_conv, None, cu_seqlens, conv, dmixed, dconv_ht)
        dz = dz.flatten(1)
        dx = dqkv @ W_qkv + dz @ W_z
        dx = dx + da @ W_a + db @ W_b
        dW_qkv, dW_z, dW_a, dW_b = dqkv.T @ X, dz.T @ X, da.T @ X, db.T @ X
    weights = (dW_qkv, dW_z, dW_a, dW_b, dW_conv, dA_log, ddt_bias, dw, dW_out)
    return (dx.to(x.dtype), *weights, dconv, dh0.mT.contiguous())
