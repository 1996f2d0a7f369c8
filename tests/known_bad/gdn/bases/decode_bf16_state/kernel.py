"""A decode step whose states are stored in bfloat16."""

import torch


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last_bf16_state."""
    q, k, v, a, b = (x[:, 0] for x in (q, k, v, a, b))
    o, S = token(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return o[:, None], S.bfloat16()


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
