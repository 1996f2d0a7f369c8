"""Wrong on purpose. A state that is not to be read is multiplied by zero."""

import torch


def prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state):
    """gdn_conv1d_prefill."""
    output, bounds = torch.zeros_like(x), cu_seqlens.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, stop = bounds[n], bounds[n + 1]
        if slot < 0 or start == stop:
            continue
        # WRONG: NaN times zero is NaN; zeros where has_initial_state[n] is false, whatever the slot holds
        state = conv_states[slot].T.float() * has_initial_state[n]  # [W - 1, C]
        window = torch.cat([state, x[start:stop].float()])
        output[start:stop] = convolve(window, weight, bias)
        conv_states[slot] = window[stop - start :].T.to(conv_states.dtype)
    return output


def convolve(window, weight, bias):
    """window [W - 1 + T, C], weight [C, W], bias [C] or None. Returns [T, C]."""
    weight, W = weight.float(), weight.shape[1]
    T = len(window) - (W - 1)
    y = sum(weight[:, j] * window[j : j + T] for j in range(W))
    y = y if bias is None else y + bias.float()
    return y * torch.sigmoid(y)
