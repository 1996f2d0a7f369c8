"""The convolution for verify: all rows at once, from windows that begin where each row's last step ended."""

import torch


def conv1d_verify(x, weight, bias, conv_states, slots, accepted, drafts):
    """gdn_conv1d_verify: x [B, T, C]; conv_states [num_slots, C, W - 2 + T] is updated in place."""
    T, W = x.shape[1], weight.shape[1]
    output = torch.zeros_like(x)
    live = ((slots >= 0) & (drafts > 0)).nonzero()[:, 0]
    place, count = slots[live].long(), drafts[live][:, None]
    held = conv_states[place]  # [N, C, W - 2 + T]
    first = accepted[live].long()[:, None] - 1
    at = first + torch.arange(W - 1, device=x.device)
    before = held.gather(2, at[:, None].expand(-1, held.shape[1], -1))
    window = torch.cat([before, x[live].transpose(1, 2).to(held.dtype)], dim=2)  # [N, C, W - 1 + T]
    y = sum(weight[:, j, None].float() * window[..., j : j + T].float() for j in range(W))
    y = y if bias is None else y + bias[:, None].float()
    there = torch.arange(T, device=x.device) < count
    output[live] = torch.where(there[:, None], y * torch.sigmoid(y), 0.0).transpose(1, 2).to(x.dtype)
    kept = torch.arange(W - 2 + T, device=x.device) < W - 2 + count
    conv_states[place] = torch.where(kept[:, None], window[..., 1:], held)
    return output
