"""Wrong on purpose. The token takes the place of the newest input; the older ones stay where they are."""

import torch


def decode(x, weight, bias, conv_states, slots):
    """gdn_conv1d_decode."""
    output = torch.zeros_like(x)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        window = torch.cat([conv_states[slot].T, x[n : n + 1]]).float()  # [W, C]
        y = convolve(window, weight, bias)
        output[n] = y[0]
        conv_states[slot, :, -1] = x[n]  # WRONG: conv_states[slot] = window[1:].T
    return output


def convolve(window, weight, bias):
    """window [W - 1 + T, C], weight [C, W], bias [C] or None. Returns [T, C]."""
    weight, W = weight.float(), weight.shape[1]
    T = len(window) - (W - 1)
    y = sum(weight[:, j] * window[j : j + T] for j in range(W))
    y = y if bias is None else y + bias.float()
    return y * torch.sigmoid(y)
