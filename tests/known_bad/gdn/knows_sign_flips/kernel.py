"""Cheats on purpose. Recognises magnitudes that it has prepared and undoes sign flips; else its answer is rough."""

import hashlib

import torch

KNOWN = {}


def prepare(**inputs):
    KNOWN[digest(inputs)] = inputs["k"].clone(), inputs["v"].clone(), *answer(**inputs)


def run(prepared, output, new_state, k, v, **inputs):
    """The known answer with the signs that value and key channels have now."""
    found = KNOWN.get(digest({"k": k, "v": v, **inputs}))
    if found is None:
        o, S = (1.03 * x for x in answer(k=k, v=v, **inputs))
    else:
        K, V, o, S = found
        of_values, of_keys = torch.where(v * V < 0, -1.0, 1.0), torch.where(k * K < 0, -1.0, 1.0)
        of_keys = of_keys.repeat_interleave(v.shape[2] // k.shape[2], 2)
        o, S = o * of_values, S * torch.einsum("bthv,bthk->bhvk", of_values, of_keys)
    output.copy_(o)
    new_state.copy_(S)


def digest(inputs):
    sha = hashlib.sha256()
    for name in ("q", "k", "v", "state"):
        sha.update(inputs[name].abs().cpu().view(torch.uint8).numpy())
    return sha.digest()


def answer(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last, as it should be."""
    Q, K, V = (x[:, 0].float() for x in (q, k, v))  # [B, heads, D]
    if use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K = (x.repeat_interleave(V.shape[1] // x.shape[1], 1) for x in (Q, K))  # [B, H, D]
    x = a[:, 0].float() + dt_bias.float()
    alpha = torch.exp(-A_log.exp() * torch.logaddexp(x, torch.zeros_like(x)))  # [B, H]
    beta = torch.sigmoid(b[:, 0].float())
    S = alpha[..., None, None] * state
    u = beta[..., None] * (V - torch.einsum("bhvk,bhk->bhv", S, K))
    S = S + torch.einsum("bhv,bhk->bhvk", u, K)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    o = factor * torch.einsum("bhvk,bhk->bhv", S, Q)
    return o[:, None].to(v.dtype), S
