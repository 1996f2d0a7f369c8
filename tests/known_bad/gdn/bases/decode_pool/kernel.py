"""A decode step whose states lie in the slots of a pool."""

import torch


def decode(q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    read, write = read_slots[rows].long(), write_slots[rows].long()
    output = torch.zeros_like(v)
    q, k, v, a, b = (x[rows, 0] for x in (q, k, v, a, b))
    o, S = token(q, k, v, pool[read], A_log, a, dt_bias, b, scale, use_qk_l2norm)
    output[rows, 0] = o
    pool[write] = S.to(pool.dtype)
    return output


def token(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """One token of each row: q, k, v [B, heads, D], S [B, H, V, K], a, b [B, H]. Returns o, S."""
    Q, K, V = (x.float() for x in (q, k, v))
    if use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K = (x.repeat_interleave(V.shape[1] // x.shape[1], 1) for x in (Q, K))  # [B, H, D]
    x = a.float() + dt_bias.float()
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(x, torch.zeros_like(x)))  # [B, H]
    beta = torch.sigmoid(b.float())
    S = alpha[..., None, None] * S.float()
    u = beta[..., None] * (V - torch.einsum("bhvk,bhk->bhv", S, K))
    S = S + torch.einsum("bhv,bhk->bhvk", u, K)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (factor * torch.einsum("bhvk,bhk->bhv", S, Q)).to(v.dtype), S
