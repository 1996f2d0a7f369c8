"""The layer around Kimi Delta Attention in plain PyTorch: float32 throughout, what is written rounded once."""

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """Not torch's own, which on a CPU rounds the last few elements of a tensor in another way than the rest."""
    return 1 / (1 + torch.exp(-x))


# --- convolution ----------------------------------------------------------------------------------------------------


def conv1d_prefill(x, weight, cu_seqlens, conv_states, slots, has_initial_state):
    """silu of the convolution: one pass over the packed tokens a tap, whatever sequences they are of."""
    T, W = x.shape[0], weight.shape[1]
    lengths = cu_seqlens.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
    position = torch.arange(T, device=x.device) - cu_seqlens[:-1][owner]

    slot = slots.long()
    begins = ((slot >= 0) & has_initial_state)[:, None, None]  # chosen, not multiplied by: others may hold NaN
    states = torch.where(begins, conv_states[slot.clamp(min=0)].float(), 0.0)  # [N, C, W - 1]
    y = torch.zeros_like(x)
    for j in range(W):
        back = W - 1 - j  # tokens before the one that is made
        taken = x[(torch.arange(T, device=x.device) - back).clamp(min=0)]
        before = position < back  # the start of the sequence
        taken[before] = states[owner[before], :, position[before] + j]
        y = y + weight[:, j].float() * taken

    # Position i of the state after L tokens is input L - (W - 1) + i, or what stood at L + i before.
    at = lengths[:, None] + torch.arange(W - 1, device=x.device)  # [N, W - 1]
    moved = states.gather(2, at.clamp(max=W - 2)[:, None].expand(-1, states.shape[1], -1))
    if T:
        recent = x[(cu_seqlens[:-1, None] + at - (W - 1)).clamp(0, T - 1)].transpose(1, 2)  # [N, C, W - 1]
        moved = torch.where((at >= W - 1)[:, None], recent, moved)
    written = (slot >= 0) & (lengths > 0)
    conv_states[slot[written]] = moved[written].to(conv_states.dtype)
    return y * sigmoid(y)


# --- the rule -------------------------------------------------------------------------------------------------------


def l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def step(S, q, k, v, alpha, beta):
    """One token: S [N, H, V, K]; q, k, alpha [N, H, K]; v [N, H, V]; beta [N, H]. Returns (S q, S). Sums of products: a
    matrix product may round its operands where the caller has allowed it."""
    S = alpha[..., None, :] * S  # each key channel by its own decay
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    return (S * q[..., None, :]).sum(-1), S


def rule(mixed, alpha, beta, recurrent_states, slots, cu_seqlens):
    """At step t, the t-th token of every sequence that still has one. mixed [T, 2 key_dim + value_dim]; alpha
    [T, H, K]; beta [T, H]; states [slots, H, K, V], in place. Returns o [T, H, V]."""
    H, D = recurrent_states.shape[1:3]
    key_dim = (mixed.shape[1] - H * D) // 2
    q, k, v = (y.unflatten(1, (-1, D)) for y in mixed.split([key_dim, key_dim, H * D], dim=1))
    q, k = (l2_normalise(y).repeat_interleave(H * D // key_dim, 1) for y in (q, k))
    q = q * D**-0.5
    o = torch.zeros_like(v)
    lengths, slot, start = cu_seqlens.diff().tolist(), slots.long(), cu_seqlens[:-1].long()
    order = [n for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]) if slots[n] >= 0 and lengths[n]]
    index = torch.tensor(order, dtype=torch.int64, device=v.device)
    S, start = recurrent_states[slot[index]].mT.contiguous(), start[index]
    alive = len(order)
    for t in range(lengths[order[0]] if order else 0):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        rows = start[:alive] + t
        o[rows], S[:alive] = step(S[:alive], q[rows], k[rows], v[rows], alpha[rows], beta[rows])
    recurrent_states[slot[index]] = S.mT
    return o


# --- gates and norm ---------------------------------------------------------------------------------------------------


def decay(a, A_log, dt_bias, lower_bound):
    """alpha [T, H, K] from raw gates a [T, H, K]. A lower bound is a factor: it clamps nothing."""
    rate, x = torch.exp(A_log)[:, None], a + dt_bias
    if lower_bound:
        return torch.exp(float(lower_bound) * sigmoid(rate * x))
    return torch.exp(-rate * (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))))


def gated_rms_norm(o, z, weight, eps):
    """[T, H, V]: the norm over a head, a weight a channel, and a sigmoid for the gate."""
    factor = torch.rsqrt(o.square().mean(-1, keepdim=True) + (1e-5 if eps is None else float(eps)))
    # With eps 0 the factor of a row of zeros, which a skipped token has, is infinite.
    return torch.where(o == 0, 0.0, o * factor * weight.float() * sigmoid(z))


# --- the layer ------------------------------------------------------------------------------------------------------


def low_rank(x, down, up):
    """x [T, hidden_size] through two projections, apart by heads: [T, H, D]."""
    return ((x @ down.float().T) @ up.float().T).unflatten(1, (-1, down.shape[0]))


def layer_prefill(
    x, qkv_weight, f_a_weight, f_b_weight, b_weight, g_a_weight, g_b_weight, conv_weight, A_log, dt_bias, norm_weight,
    out_weight, cu_seqlens, conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, lower_bound, eps,
):  # fmt: skip
    """kda_layer_prefill."""
    hidden = x.float()
    qkv, beta = hidden @ qkv_weight.float().T, sigmoid(hidden @ b_weight.float().T)
    a, z = low_rank(hidden, f_a_weight, f_b_weight), low_rank(hidden, g_a_weight, g_b_weight)
    mixed = conv1d_prefill(qkv, conv_weight, cu_seqlens, conv_states, conv_slots, has_initial_state)
    begins = (cu_seqlens.diff() > 0) & ~has_initial_state & (state_slots >= 0)
    recurrent_states[state_slots[begins].long()] = 0.0
    alpha = decay(a, A_log, dt_bias, lower_bound)
    o = rule(mixed, alpha, beta, recurrent_states, state_slots, cu_seqlens)
    y = gated_rms_norm(o, z, norm_weight, eps).flatten(1) @ out_weight.float().T
    live = torch.repeat_interleave(state_slots >= 0, cu_seqlens.diff())
    return torch.where(live[:, None], y, 0.0).to(x.dtype)


def layer_decode(
    x, qkv_weight, f_a_weight, f_b_weight, b_weight, g_a_weight, g_b_weight, conv_weight, A_log, dt_bias, norm_weight,
    out_weight, conv_states, conv_slots, recurrent_states, state_slots, lower_bound, eps,
):  # fmt: skip
    """kda_layer_decode: sequences of one token, which all go on from their states."""
    each = torch.arange(len(x) + 1, device=x.device)
    carried = torch.ones(len(x), dtype=torch.bool, device=x.device)
    return layer_prefill(
        x, qkv_weight, f_a_weight, f_b_weight, b_weight, g_a_weight, g_b_weight, conv_weight, A_log, dt_bias,
        norm_weight, out_weight, each, conv_states, conv_slots, recurrent_states, state_slots, carried, lower_bound,
        eps,
    )  # fmt: skip
