"""A decode step that cuts q, k and v out of one row."""

import torch


def decode(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_packed_k_last."""
    B, H, D, _ = state.shape
    keys = (mixed_qkv.shape[1] - H * D) // 2
    q, k, v = (x.reshape(B, -1, D) for x in mixed_qkv.split([keys, keys, H * D], 1))
    return token(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)


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
