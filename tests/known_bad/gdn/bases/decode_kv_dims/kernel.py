"""Decode and verification with head sizes of their own for keys and for values, and write gates up to 2."""

import torch


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval):
    """gdn_decode_k_last_kv_dims."""
    one = (x[:, 0] for x in (q, k, v))
    o, S = token(*one, state, A_log, a[:, 0], dt_bias, b[:, 0], scale, use_qk_l2norm, allow_neg_eigval)
    return o[:, None], S


def pool(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval
):  # fmt: skip
    """gdn_decode_pool_k_last_kv_dims."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    output, read = torch.zeros_like(v), pool[read_slots[rows].long()]
    one = (x[rows, 0] for x in (q, k, v))
    output[rows, 0], pool[write_slots[rows].long()] = token(
        *one, read, A_log, a[rows, 0], dt_bias, b[rows, 0], scale, use_qk_l2norm, allow_neg_eigval
    )
    return output


def verify(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval
):  # fmt: skip
    """gdn_verify_k_last_kv_dims."""
    rows = (initial_slots >= 0).nonzero()[:, 0]
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    S = pool[torch.where(accepted > 0, last, initial_slots)[rows].long()]
    output = torch.zeros_like(v)
    for t in range(q.shape[1]):
        one = (x[rows, t] for x in (q, k, v))
        output[rows, t], S = token(
            *one, S, A_log, a[rows, t], dt_bias, b[rows, t], scale, use_qk_l2norm, allow_neg_eigval
        )
        pool[state_slots[rows, t].long()] = S
    return output


def token(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval):
    """One token of each row: q, k [B, heads, K], v [B, H, V], S [B, H, V, K], a, b [B, H]. Returns o, S."""
    Q, K, V = (x.float() for x in (q, k, v))
    if use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K = (x.repeat_interleave(V.shape[1] // x.shape[1], 1) for x in (Q, K))
    x = a.float() + dt_bias.float()
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(x, torch.zeros_like(x)))
    beta = torch.sigmoid(b.float()) * (2 if allow_neg_eigval else 1)
    S = alpha[..., None, None] * S
    u = beta[..., None] * (V - torch.einsum("bhvk,bhk->bhv", S, K))
    S = S + torch.einsum("bhv,bhk->bhvk", u, K)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (factor * torch.einsum("bhvk,bhk->bhv", S, Q)).to(v.dtype), S
