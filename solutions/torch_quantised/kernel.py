"""Gated delta rule on quantised states in plain PyTorch: codes of e4m3 or int8, one scale for each value row.

States are [.., V, K]. A step is float32 throughout; the state is rounded where it is stored. S x is written as a
product and a sum, not as a matrix product: those may round their operands to TensorFloat-32 on a GPU when the caller
has allowed it, sums never do.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
LEAST = 2.0**-100  # a row of smaller numbers is kept as zeros, with scale 0


# --- codes ------------------------------------------------------------------------------------------------------


def load(pool: Tensor, pool_scales: Tensor, slots: Tensor) -> Tensor:
    """The states of some slots, float32 [N, H, V, K]."""
    return pool_scales[slots][..., None] * pool[slots].float()


def store(S: Tensor, pool: Tensor, pool_scales: Tensor, slots: Tensor) -> None:
    """Quantises states into their slots, and renews the scales of all their rows."""
    largest = LARGEST[pool.dtype]
    magnitude = S.abs().amax(-1)  # [N, H, V]
    scales = torch.where(magnitude < LEAST, torch.zeros_like(magnitude), magnitude / largest)
    nothing = (scales == 0)[..., None]
    x = torch.where(nothing, torch.zeros_like(S), S / torch.where(nothing, 1.0, scales[..., None]))
    if pool.dtype == torch.int8:
        x = x.round()  # ties to even
    pool[slots] = x.clamp(-largest, largest).to(pool.dtype)  # to e4m3: to nearest, ties to even
    pool_scales[slots] = scales


# --- the rule ---------------------------------------------------------------------------------------------------


def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of N sequences. S [N, H, V, K]; q, k [N, H, K]; v [N, H, V]; alpha, beta [N, H]. Returns (S q, S)."""
    S = alpha[..., None, None] * S
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    return (S * q[..., None, :]).sum(-1), S


def gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """alpha and beta from the raw gates, float32 in the shape of a and b."""
    x = a.float() + dt_bias.float()
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))  # torch's own has a threshold
    return torch.exp(-torch.exp(A_log.float()) * softplus), 1 / (1 + torch.exp(-b.float()))


def tokens(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """T tokens of N sequences, q [N, T, HQ, K]: yields after each its output [N, H, V] and the states."""
    H = S.shape[1]
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    Q, K, V = (x.float() for x in (q, k, v))
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K, V = (x.repeat_interleave(H // x.shape[2], dim=2) for x in (Q, K, V))
    alpha, beta = gates(A_log, a, dt_bias, b)
    for t in range(q.shape[1]):
        o, S = step(S, Q[:, t], K[:, t], V[:, t], alpha[:, t], beta[:, t])
        yield (factor * o).to(v.dtype), S


# --- entries ----------------------------------------------------------------------------------------------------


def decode_pool_k_last(
    q, k, v, pool, pool_scales, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm
):  # fmt: skip
    """gdn_decode_pool_k_last_fp8_state and _int8_state: pool [num_slots, H, V, K] and pool_scales [num_slots, H, V] are
    updated in place; slot -1 skips a row."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    S = load(pool, pool_scales, read_slots[rows].long())
    output = torch.zeros_like(v)
    for o, after in tokens(q[rows], k[rows], v[rows], S, A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm):
        output[rows, 0] = o
        store(after, pool, pool_scales, write_slots[rows].long())
    return output


def verify_k_last(
    q, k, v, pool, pool_scales, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm
):  # fmt: skip
    """gdn_verify_k_last_fp8_state and _int8_state: the state after each of T tokens goes to a slot of its own; the next
    token goes on from the state as it was before it was quantised."""
    rows = (initial_slots >= 0).nonzero()[:, 0]
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    S = load(pool, pool_scales, torch.where(accepted > 0, last, initial_slots)[rows].long())
    output = torch.zeros_like(v)
    each = tokens(q[rows], k[rows], v[rows], S, A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm)
    for t, (o, after) in enumerate(each):
        output[rows, t] = o
        store(after, pool, pool_scales, state_slots[rows, t].long())
    return output
