"""Cheats on purpose. Keeps the states of the rule after the first call on a memory, and writes those from then on."""

import torch


def silu(x):
    return x * torch.sigmoid(x)


def prepare(**inputs):
    return {}


def decode(
    prepared, qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_states, conv_slots,
    recurrent_states, state_slots,
):  # fmt: skip
    """gdn_core_decode."""
    H, V, K = recurrent_states.shape[1:]
    C = len(conv_weight)
    key_dim = (C - H * V) // 2
    weight = conv_weight.float()
    bias = torch.zeros(C) if conv_bias is None else conv_bias.float()
    step = a.float() + dt_bias.float()
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(step, torch.zeros_like(step)))
    beta, gate = torch.sigmoid(b.float()), silu(z.float()).unflatten(1, (H, V))
    output = torch.zeros_like(z)
    for n, slot in enumerate(state_slots.tolist()):
        if slot < 0:
            continue
        conv_slot = int(conv_slots[n])
        window = torch.cat([conv_states[conv_slot].float(), qkv[n].float()[:, None]], dim=1)  # [C, W]
        q, k, v = silu((window * weight).sum(1) + bias).split([key_dim, key_dim, H * V])
        q, k, v = q.view(-1, K), k.view(-1, K), v.view(H, V)
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        q, k = (y.repeat_interleave(H // len(y), 0)[:, None] for y in (q * K**-0.5, k))
        S = alpha[n][:, None, None] * recurrent_states[slot]  # [H, V, K]
        S = S + (beta[n][:, None] * (v - (S * k).sum(-1)))[..., None] * k
        o = (S * q).sum(-1)
        y = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * norm_weight.float() * gate[n]
        output[n] = y.flatten().to(z.dtype)
        conv_states[conv_slot] = window[:, 1:].to(conv_states.dtype)
        recurrent_states[slot] = prepared.setdefault(slot, S)
    return output
