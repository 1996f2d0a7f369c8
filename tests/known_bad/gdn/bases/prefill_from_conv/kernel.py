"""A prefill token by token of the rows that a convolution leaves, its states in a pool."""

import torch


def prefill(qkv, decay, beta, recurrent_state, slots, row_offsets):
    """gdn_prefill_from_conv."""
    H, K, V = recurrent_state.shape[1:]
    key_dim = (qkv.shape[1] - H * V) // 2
    q, k, v = qkv.float().split([key_dim, key_dim, H * V], dim=1)
    q, k, v = q.unflatten(1, (-1, K)), k.unflatten(1, (-1, K)), v.unflatten(1, (H, V))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = (x.repeat_interleave(H // x.shape[1], 1) for x in (q, k))
    q = q * K**-0.5
    output, bounds = torch.zeros(v.shape), row_offsets.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, stop = bounds[n], bounds[n + 1]
        if slot < 0 or start == stop:
            continue
        S = recurrent_state[slot].float()  # [H, K, V]
        for t in range(start, stop):
            S = decay[t][:, None, None] * S
            u = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", S, k[t]))
            S = S + k[t][..., None] * u[:, None]
            output[t] = torch.einsum("hkv,hk->hv", S, q[t])
        recurrent_state[slot] = S.to(recurrent_state.dtype)
    return output.flatten(1)
