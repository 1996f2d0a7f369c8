"""What stands around the gated delta rule, in plain PyTorch: float32 throughout, what is written rounded once."""

import torch
from torch import Tensor


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


# --- convolution ----------------------------------------------------------------------------------------------------


def conv1d_prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state):
    """gdn_conv1d_prefill: one pass over the packed tokens a tap, whatever sequences they are of."""
    T, W = x.shape[0], weight.shape[1]
    lengths = cu_seqlens.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
    position = torch.arange(T, device=x.device) - cu_seqlens[:-1][owner]

    slot = slots.long()
    live = slot >= 0
    begins = (live & has_initial_state)[:, None, None]  # chosen, not multiplied by: what is not read may hold NaN
    states = torch.where(begins, conv_states[slot.clamp(min=0)].float(), 0.0)  # [N, C, W - 1]
    y = torch.zeros(x.shape, device=x.device) if bias is None else bias.float().expand(x.shape)
    for j in range(W):
        back = W - 1 - j  # tokens before the one that is made
        rows = torch.arange(T, device=x.device) - back
        before = position < back  # the start of the sequence
        taken = x[rows.clamp(min=0)].float()
        taken[before] = states[owner[before], :, position[before] + j]
        y = y + weight[:, j].float() * taken
    output = torch.where(live[owner, None], silu(y), 0.0).to(x.dtype)

    # Position i of the state after L tokens is input L - (W - 1) + i, or what stood at L + i before.
    at = lengths[:, None] + torch.arange(W - 1, device=x.device)  # [N, W - 1]
    moved = states.gather(2, at.clamp(max=W - 2)[:, None].expand(-1, states.shape[1], -1))
    if T:
        rows = cu_seqlens[:-1, None] + at - (W - 1)
        recent = x[rows.clamp(0, T - 1)].float().transpose(1, 2)  # [N, C, W - 1]
        moved = torch.where((at >= W - 1)[:, None], recent, moved)
    written = live & (lengths > 0)
    conv_states[slot[written]] = moved[written].to(conv_states.dtype)
    return output


def conv1d_decode(x, weight, bias, conv_states, slots):
    """gdn_conv1d_decode."""
    slot = slots.long()
    live = slot >= 0
    window = torch.cat([conv_states[slot.clamp(min=0)].to(x.dtype), x[:, :, None]], dim=2)  # [B, C, W]
    y = (window.float() * weight.float()).sum(-1)
    y = y if bias is None else y + bias.float()
    conv_states[slot[live]] = window[live, :, 1:].to(conv_states.dtype)
    return torch.where(live[:, None], silu(y), 0.0).to(x.dtype)


# --- norm -----------------------------------------------------------------------------------------------------------


def gated_rms_norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + (1e-6 if eps is None else eps))
    # With eps 0 the factor of a row of zeros, which a skipped token has, is infinite.
    return torch.where(wide == 0, 0.0, wide * factor * weight.float() * silu(z.float())).to(x.dtype)


# --- the rule, straight from the convolution ------------------------------------------------------------------------


def l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def step(S, q, k, v, alpha, beta):
    """One token: S [N, H, V, K]; q, k [N, H, K]; v [N, H, V]; alpha, beta [N, H]. Returns (S q, S). Sums of products: a
    matrix product may round its operands where the caller has allowed it."""
    S = alpha[..., None, None] * S
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    return (S * q[..., None, :]).sum(-1), S


def prefill_from_conv(qkv, decay, beta, recurrent_state, slots, row_offsets):
    """gdn_prefill_from_conv: at step t, the t-th token of every sequence that still has one."""
    H, K, V = recurrent_state.shape[1:]
    key_dim = (qkv.shape[1] - H * V) // 2
    q, k, v = qkv.float().split([key_dim, key_dim, H * V], dim=1)
    q, k = (l2_normalise(x.unflatten(1, (-1, K))).repeat_interleave(H * K // key_dim, 1) for x in (q, k))
    v, q = v.unflatten(1, (H, V)), q * K**-0.5
    output = torch.zeros(v.shape, device=v.device)
    lengths = row_offsets.diff().tolist()
    slot, start = slots.long(), row_offsets[:-1].long()
    order = [n for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]) if slots[n] >= 0 and lengths[n]]
    index = torch.tensor(order, dtype=torch.int64, device=v.device)
    S, start = recurrent_state[slot[index]].float().mT.contiguous(), start[index]
    alive = len(order)
    for t in range(lengths[order[0]] if order else 0):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        rows = start[:alive] + t
        output[rows], S[:alive] = step(S[:alive], q[rows], k[rows], v[rows], decay[rows], beta[rows])
    recurrent_state[slot[index]] = S.mT.to(recurrent_state.dtype)
    return output.flatten(1)


# --- everything between the projections and the rule -----------------------------------------------------------------


def conv_gates_prefill(
    x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim
):  # fmt: skip
    """gdn_conv_gates_prefill."""
    mixed = conv1d_prefill(x.float(), conv_weight, conv_bias, cu_seqlens, conv_states, slots, has_initial_state)
    value_dim = a.shape[1] * head_dim
    key_dim = (x.shape[1] - value_dim) // 2
    q, k, v = (y.unflatten(1, (-1, head_dim)) for y in mixed.split([key_dim, key_dim, value_dim], dim=1))
    alpha, beta = gates(a.float(), b.float(), A_log, dt_bias)
    live = torch.repeat_interleave(slots >= 0, cu_seqlens.diff())[:, None]
    alpha, beta = torch.where(live, alpha, 1.0), torch.where(live, beta, 0.0)  # tokens that leave a state as it is
    return (*(y.to(x.dtype) for y in (l2_normalise(q), l2_normalise(k), v)), alpha, beta)


# --- the layer ------------------------------------------------------------------------------------------------------


def layer_prefill(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, eps=None, doubled=False,
):  # fmt: skip
    """gdn_layer_prefill; `doubled`: beta = 2 sigmoid."""
    hidden, H = x.float(), recurrent_states.shape[1]
    qkv, z, a, b = (hidden @ weight.float().T for weight in (qkv_weight, z_weight, a_weight, b_weight))
    mixed = conv1d_prefill(qkv, conv_weight, None, cu_seqlens, conv_states, conv_slots, has_initial_state)
    begins = (cu_seqlens.diff() > 0) & ~has_initial_state & (state_slots >= 0)
    recurrent_states[state_slots[begins].long()] = 0.0
    alpha, beta = gates(a, b, A_log, dt_bias, doubled)
    o = prefill_from_conv(mixed, alpha, beta, recurrent_states, state_slots, cu_seqlens)
    live = torch.repeat_interleave(state_slots >= 0, cu_seqlens.diff())
    return torch.where(live[:, None], finished(o, z, norm_weight, out_weight, H, eps), 0.0).to(x.dtype)


def layer_decode(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
    conv_slots, recurrent_states, state_slots, eps=None, doubled=False,
):  # fmt: skip
    """gdn_layer_decode; `doubled`: beta = 2 sigmoid."""
    hidden, H = x.float(), recurrent_states.shape[1]
    qkv, z, a, b = (hidden @ weight.float().T for weight in (qkv_weight, z_weight, a_weight, b_weight))
    mixed = conv1d_decode(qkv, conv_weight, None, conv_states, conv_slots)
    each = torch.arange(len(x) + 1, dtype=torch.int32, device=x.device)
    o = prefill_from_conv(mixed, *gates(a, b, A_log, dt_bias, doubled), recurrent_states, state_slots, each)
    live = (state_slots >= 0)[:, None]
    return torch.where(live, finished(o, z, norm_weight, out_weight, H, eps), 0.0).to(x.dtype)


def layer_prefill_neg_eigval(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, eps,
):  # fmt: skip
    """gdn_layer_prefill_neg_eigval."""
    return layer_prefill(
        x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
        conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, eps, doubled=True,
    )  # fmt: skip


def layer_decode_neg_eigval(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
    conv_slots, recurrent_states, state_slots, eps,
):  # fmt: skip
    """gdn_layer_decode_neg_eigval."""
    return layer_decode(
        x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
        conv_slots, recurrent_states, state_slots, eps, doubled=True,
    )  # fmt: skip


def core_decode(
    qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_states, conv_slots, recurrent_states,
    state_slots,
):  # fmt: skip
    """gdn_core_decode: states [V, K]."""
    H, V, K = recurrent_states.shape[1:]
    key_dim = (qkv.shape[1] - H * V) // 2
    mixed = conv1d_decode(qkv.float(), conv_weight, conv_bias, conv_states, conv_slots)
    q, k, v = mixed.split([key_dim, key_dim, H * V], dim=1)
    q, k = (l2_normalise(x.unflatten(1, (-1, K))).repeat_interleave(H * K // key_dim, 1) for x in (q, k))
    slot = state_slots.long()
    live = slot >= 0
    alpha, beta = gates(a.float(), b.float(), A_log, dt_bias)
    o, S = step(recurrent_states[slot.clamp(min=0)], q * K**-0.5, k, v.unflatten(1, (H, V)), alpha, beta)
    recurrent_states[slot[live]] = S[live]
    y = gated_rms_norm(o, z.float().unflatten(1, (H, V)), norm_weight, None).flatten(1)
    return torch.where(live[:, None], y, 0.0).to(z.dtype)


def gates(a, b, A_log, dt_bias, doubled=False):
    """alpha and beta; softplus without a threshold."""
    x, beta = a + dt_bias.float(), torch.sigmoid(b)
    return torch.exp(-A_log.exp() * torch.logaddexp(x, torch.zeros_like(x))), 2 * beta if doubled else beta


def finished(o, z, norm_weight, out_weight, H, eps):
    """Norm, gate and the last projection."""
    o, z = (y.unflatten(1, (H, -1)) for y in (o, z))
    return gated_rms_norm(o, z, norm_weight, eps).flatten(1) @ out_weight.float().T
