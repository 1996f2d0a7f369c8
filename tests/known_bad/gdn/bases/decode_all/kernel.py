"""Every form of decode by one function for a token: alone, packed, in a pool, and the verification of drafts."""

import torch


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state."""
    one = (x[:, 0] for x in (q, k, v))
    o, S = token(*one, state, A_log, a[:, 0], dt_bias, b[:, 0], scale, use_qk_l2norm)
    return o[:, None], S.to(state.dtype)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_first, gdn_decode_k_first_bf16_state."""
    o, S = decode(q, k, v, state.mT, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return o, S.mT.contiguous()


def packed(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_packed_k_last."""
    H, D = state.shape[1:3]
    key_dim = (mixed_qkv.shape[1] - H * D) // 2
    q, k, v = (x.unflatten(1, (-1, D)) for x in mixed_qkv.split([key_dim, key_dim, H * D], 1))
    return token(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)


def pooled(q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    output = torch.zeros_like(v)
    q, k, v, a, b = (x[rows, 0] for x in (q, k, v, a, b))
    o, S = token(q, k, v, pool[read_slots[rows].long()], A_log, a, dt_bias, b, scale, use_qk_l2norm)
    output[rows, 0] = o
    pool[write_slots[rows].long()] = S.to(pool.dtype)
    return output


def verify(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm
):  # fmt: skip
    """gdn_verify_k_last."""
    rows = (initial_slots >= 0).nonzero()[:, 0]
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    start = torch.where(accepted > 0, last, initial_slots)
    output = torch.zeros_like(v)
    S = pool[start[rows].long()]
    for t in range(q.shape[1]):
        one = (x[rows, t] for x in (q, k, v))
        output[rows, t], S = token(*one, S, A_log, a[rows, t], dt_bias, b[rows, t], scale, use_qk_l2norm)
        pool[state_slots[rows, t].long()] = S
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
