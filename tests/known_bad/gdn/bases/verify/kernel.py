"""The verification of draft tokens, one after the other."""

import torch


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
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(x, torch.zeros_like(x)))  # [B, H]
    beta = torch.sigmoid(b.float())
    S = alpha[..., None, None] * S.float()
    u = beta[..., None] * (V - torch.einsum("bhvk,bhk->bhv", S, K))
    S = S + torch.einsum("bhv,bhk->bhvk", u, K)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (factor * torch.einsum("bhvk,bhk->bhv", S, Q)).to(v.dtype), S
