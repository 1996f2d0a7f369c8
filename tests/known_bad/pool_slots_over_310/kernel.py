"""Wrong on purpose. Slots from the 311th on are taken for the 310th when they are read."""

import torch


def pooled(q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    output = torch.zeros_like(v)
    q, k, v, a, b = (x[rows, 0] for x in (q, k, v, a, b))
    S = pool[read_slots[rows].long().clamp(max=309)]  # WRONG: read_slots as they are
    o, S = token(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    output[rows, 0] = o
    pool[write_slots[rows].long()] = S.to(pool.dtype)
    return output


def token(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """One token of each row: q, k, v [B, heads, D], S [B, H, V, K], a, b [B, H]. Returns o, S."""
    Q, K, V = (x.float() for x in (q, k, v))
    if use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K = (x.repeat_interleave(V.shape[1] // x.shape[1], 1) for x in (Q, K))  # [B, H, D]
    x = a.float() + dt_bias.float()
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
    alpha = torch.exp(-A_log.exp() * softplus)  # [B, H]
    beta = torch.sigmoid(b.float())
    S = alpha[..., None, None] * S.float()
    u = beta[..., None] * (V - torch.einsum("bhvk,bhk->bhv", S, K))
    S = S + torch.einsum("bhv,bhk->bhvk", u, K)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (factor * torch.einsum("bhvk,bhk->bhv", S, Q)).to(v.dtype), S
