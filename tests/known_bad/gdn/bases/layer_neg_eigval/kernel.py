"""The whole layer, its write gates up to 2, as prefill and as decode step."""

import torch


def prefill(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, eps,
):  # fmt: skip
    """gdn_layer_prefill_neg_eigval."""
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    pools = (conv_states, conv_slots, recurrent_states, state_slots, has_initial_state)
    return layer(x, *(w.float() for w in weights), cu_seqlens.tolist(), *pools, eps)


def decode(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
    conv_slots, recurrent_states, state_slots, eps,
):  # fmt: skip
    """gdn_layer_decode_neg_eigval."""
    weights = (qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight)
    pools = (conv_states, conv_slots, recurrent_states, state_slots, torch.ones(len(x), dtype=torch.bool))
    return layer(x, *(w.float() for w in weights), range(len(x) + 1), *pools, eps)


def layer(
    x, W_qkv, W_z, W_a, W_b, W_conv, A_log, dt_bias, W_norm, W_out, bounds,
    conv_states, conv_slots, recurrent_states, state_slots, flags, eps,
):  # fmt: skip
    H, K, V = recurrent_states.shape[1:]
    key_dim, output = (len(W_qkv) - H * V) // 2, torch.zeros_like(x)
    for n, slot in enumerate(state_slots.tolist()):
        t = slice(bounds[n], bounds[n + 1])
        if slot < 0 or t.start == t.stop:
            continue
        hidden, conv_slot = x[t].float(), int(conv_slots[n])
        before, S = conv_states[conv_slot].T.float(), recurrent_states[slot].clone()
        if not flags[n]:
            before, S = torch.zeros_like(before), torch.zeros_like(S)
        window = torch.cat([before, hidden @ W_qkv.T])
        mixed = sum(W_conv[:, j] * window[j : j + len(hidden)] for j in range(W_conv.shape[1]))
        mixed = mixed * torch.sigmoid(mixed)
        q, k, v = mixed.split([key_dim, key_dim, H * V], 1)
        q, k, v = q.unflatten(1, (-1, K)), k.unflatten(1, (-1, K)), v.unflatten(1, (-1, V))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        q, k = (y.repeat_interleave(H // y.shape[1], 1) for y in (q, k))
        a, b = hidden @ W_a.T + dt_bias, hidden @ W_b.T
        alpha = torch.exp(-A_log.exp() * torch.logaddexp(a, torch.zeros_like(a)))
        beta, o = 2 * torch.sigmoid(b), torch.empty_like(v)
        for i in range(len(hidden)):
            S = alpha[i][:, None, None] * S
            u = beta[i][:, None] * (v[i] - torch.einsum("hkv,hk->hv", S, k[i]))
            S = S + k[i][..., None] * u[:, None]
            o[i] = torch.einsum("hkv,hk->hv", S, q[i]) * K**-0.5
        z = (hidden @ W_z.T).unflatten(1, (H, V))
        gate = z * torch.sigmoid(z)
        y = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + (1e-6 if eps is None else eps)) * W_norm * gate
        output[t] = (y.flatten(1) @ W_out.T).to(x.dtype)
        conv_states[conv_slot] = window[len(hidden) :].T.to(conv_states.dtype)
        recurrent_states[slot] = S
    return output
