"""The convolution over a tree of drafts: token by token, each from the window of the one that it follows."""

import torch


def conv1d_verify_tree(x, weight, bias, conv_states, slots, step_windows, step_slots, drafts, parents):
    """gdn_conv1d_verify_tree: x [B, T, C]; conv_states [num_slots, C, W - 1] is only read; step_windows [num_slots, T,
    C, W - 1] is updated in place."""
    output = torch.zeros_like(x)
    live = (slots >= 0).nonzero()[:, 0]
    start = conv_states[slots[live].long()]
    after = torch.zeros(x.shape[1], *start.shape, dtype=start.dtype, device=x.device)  # windows [T, rows, C, W - 1]
    for t in range(x.shape[1]):
        there = (drafts[live] > t).nonzero()[:, 0]
        rows = live[there]
        parent = parents[rows, t].long()
        held = torch.where((parent < 0)[:, None, None], start[there], after[parent.clamp(min=0), there])
        window = torch.cat([held, x[rows, t, :, None].to(held.dtype)], dim=2)  # [rows, C, W]
        y = (weight.float() * window.float()).sum(2)
        y = y if bias is None else y + bias.float()
        output[rows, t] = (y * torch.sigmoid(y)).to(x.dtype)
        after[t, there] = window[..., 1:]
        step_windows[step_slots[rows].long(), t] = window[..., 1:]
    return output
