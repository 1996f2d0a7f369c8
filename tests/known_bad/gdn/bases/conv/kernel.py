"""The short convolution of a prefill and of a decode step, its states in a pool."""

import torch


def prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state):
    """gdn_conv1d_prefill."""
    output, bounds = torch.zeros_like(x), cu_seqlens.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, stop = bounds[n], bounds[n + 1]
        if slot < 0 or start == stop:
            continue
        state = conv_states[slot].T.float()  # [W - 1, C]
        state = state if has_initial_state[n] else torch.zeros_like(state)
        window = torch.cat([state, x[start:stop].float()])
        y = convolve(window, weight, bias)
        output[start:stop] = y
        conv_states[slot] = window[stop - start :].T
    return output


def decode(x, weight, bias, conv_states, slots):
    """gdn_conv1d_decode."""
    output = torch.zeros_like(x)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        window = torch.cat([conv_states[slot].T, x[n : n + 1]]).float()  # [W, C]
        y = convolve(window, weight, bias)
        output[n] = y[0]
        conv_states[slot] = window[1:].T
    return output


def convolve(window, weight, bias):
    """window [W - 1 + T, C], weight [C, W], bias [C] or None. Returns [T, C]."""
    weight, W = weight.float(), weight.shape[1]
    T = len(window) - (W - 1)
    y = sum(weight[:, j] * window[j : j + T] for j in range(W))
    y = y if bias is None else y + bias.float()
    return y * torch.sigmoid(y)
