"""Convolution, norms and gates in front of a prefill."""

import torch


def prefill(
    x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim
):  # fmt: skip
    """gdn_conv_gates_prefill."""
    bounds = cu_seqlens.tolist()
    mixed = torch.zeros(x.shape)
    step = a.float() + dt_bias.float()
    g = torch.exp(-A_log.exp() * torch.logaddexp(step, torch.zeros_like(step)))
    beta = torch.sigmoid(b.float())
    for n, slot in enumerate(slots.tolist()):
        start, stop = bounds[n], bounds[n + 1]
        if slot < 0:
            g[start:stop], beta[start:stop] = 1.0, 0.0
        if slot < 0 or start == stop:
            continue
        state = conv_states[slot].T.float()  # [W - 1, C]
        state = state if has_initial_state[n] else torch.zeros_like(state)
        window = torch.cat([state, x[start:stop].float()])
        mixed[start:stop] = convolve(window, conv_weight, conv_bias)
        conv_states[slot] = window[stop - start :].T
    value_dim = a.shape[1] * head_dim
    key_dim = (x.shape[1] - value_dim) // 2
    q, k, v = (y.unflatten(1, (-1, head_dim)) for y in mixed.split([key_dim, key_dim, value_dim], 1))
    q, k = l2(q), l2(k)
    return (*(y.to(x.dtype) for y in (q, k, v)), g, beta)


def l2(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def convolve(window, weight, bias):
    """window [W - 1 + T, C], weight [C, W], bias [C] or None. Returns [T, C]."""
    weight, W = weight.float(), weight.shape[1]
    T = len(window) - (W - 1)
    y = sum(weight[:, j] * window[j : j + T] for j in range(W))
    y = y if bias is None else y + bias.float()
    return y * torch.sigmoid(y)
