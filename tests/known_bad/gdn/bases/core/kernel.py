"""A decode step from the projected row to the gated norm, head by head."""

import torch


def silu(x):
    return x * torch.sigmoid(x)


def decode(
    qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_states, conv_slots, recurrent_states,
    state_slots,
):  # fmt: skip
    """gdn_core_decode."""
    H, V, K = recurrent_states.shape[1:]
    C = len(conv_weight)
    key_dim = (C - H * V) // 2
    group = H * K // key_dim
    weight = conv_weight.float()
    bias = torch.zeros(C) if conv_bias is None else conv_bias.float()
    step = a.float() + dt_bias.float()
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(step, torch.zeros_like(step)))
    beta, gate = torch.sigmoid(b.float()), silu(z.float()).unflatten(1, (H, V))
    output = torch.zeros_like(z)
    for n, slot in enumerate(state_slots.tolist()):
        conv_slot = int(conv_slots[n])
        if slot < 0:
            continue
        window = torch.cat([conv_states[conv_slot].float(), qkv[n].float()[:, None]], dim=1)  # [C, W]
        mixed = silu((window * weight).sum(1) + bias)
        q, k, v = mixed.split([key_dim, key_dim, H * V])
        q, k, v = q.view(-1, K), k.view(-1, K), v.view(H, V)
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        after = window[:, 1:]
        squares = torch.zeros(H)
        o = torch.zeros(H, V)
        for h in range(H):
            key, query = k[h // group], q[h // group] * K**-0.5
            S = alpha[n, h] * recurrent_states[slot, h]
            u = beta[n, h] * (v[h] - (S * key).sum(-1))
            S = S + u[:, None] * key
            o[h] = (S * query).sum(-1)
            squares[h] = o[h].square().mean()
            recurrent_states[slot, h] = S
        y = o * torch.rsqrt(squares + 1e-6)[:, None] * norm_weight.float() * gate[n]
        output[n] = y.flatten().to(z.dtype)
        conv_states[conv_slot] = after.to(conv_states.dtype)
    return output
