"""Kimi Delta Attention in plain PyTorch, token by token.

States are [.., V, K] inside; float32 throughout, outputs rounded once. S x is written as a product and a sum, not as a
matrix product: those may round their operands to TensorFloat-32 on a GPU when the caller has allowed it, sums never do.
"""

import torch
from torch import Tensor


def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token. S [.., H, V, K]; q, k, alpha [.., H, K]; v [.., H, V]; beta [.., H]. Returns (S q, S)."""
    S = alpha[..., None, :] * S  # each key channel by its own decay
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    o = (S * q[..., None, :]).sum(-1)
    return o, S


def expand(x: Tensor, H: int) -> Tensor:
    """Query or key heads [.., heads, K] so that each of H value heads has its own, in float32."""
    return x.float().repeat_interleave(H // x.shape[-2], dim=-2)


def bounds_of(cu_seqlens: Tensor, total: int) -> list[int]:
    """Where sequences start and end. Rows behind the last may belong to none. Raises ValueError for others."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] > total or bounds != sorted(bounds):
        raise ValueError(f"cu_seqlens must rise from 0 and end within total_seq_len {total}; it is {bounds}")
    return bounds


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill(q, k, v, g, beta, cu_seqlens, S, scale, keep=None):
    """S: float32 [num_seqs, H, V, K], or None. `keep` is told of sequence n, its tokens so far and the state after
    them. Returns output [T, H, V] and the states."""
    (T, H), K = v.shape[:2], q.shape[-1]
    factor = K**-0.5 if scale is None else float(scale)
    Q, key, V = expand(q, H), expand(k, H), v.float()
    alpha = torch.ones(T, H, K, device=q.device) if g is None else torch.exp(g)
    write = torch.ones(T, H, device=q.device) if beta is None else beta
    bounds = bounds_of(cu_seqlens, T)
    states = torch.zeros(len(bounds) - 1, H, K, K, device=q.device) if S is None else S.clone()
    output = torch.empty(T, H, K, device=q.device)
    for n in range(len(bounds) - 1):
        state = states[n]
        for t in range(bounds[n], bounds[n + 1]):
            o, state = step(state, Q[t], key[t], V[t], alpha[t], write[t])
            output[t] = factor * o
            if keep is not None:
                keep(n, t + 1 - bounds[n], state)
        states[n] = state
    return output.to(v.dtype), states


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """kda_prefill_k_last: states [num_seqs, H, V, K]."""
    return prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """kda_prefill_k_first: states [num_seqs, H, K, V]."""
    initial = None if initial_state is None else initial_state.mT.contiguous()
    output, S = prefill(q, k, v, g, beta, cu_seqlens, initial, scale)
    return output, S.mT.contiguous()


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """kda_prefill_checkpoints: as kda_prefill_k_last, with the state after every checkpoint_interval tokens."""
    (H, D), starts = v.shape[1:], checkpoint_cu_starts.tolist()
    checkpoints = torch.empty(starts[-1], H, D, D, device=q.device)

    def keep(n, tokens, state):
        if tokens % checkpoint_interval == 0:
            checkpoints[starts[n] + tokens // checkpoint_interval - 1] = state

    output, S = prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, keep)
    return output, S, checkpoints


def prefill_raw_gates(q, k, v, A_log, a, dt_bias, b, cu_seqlens, initial_state, lower_bound, scale, use_qk_l2norm):
    """kda_prefill_raw_gates: as kda_prefill_k_last, with the gates and the norm of kda_decode_k_last."""
    Q, K = vectors(q, k, use_qk_l2norm)
    g = log_gate(A_log, a, dt_bias, lower_bound)
    return prefill(Q, K, v, g, sigmoid(b.float()), cu_seqlens, initial_state, scale)


# --- decode -----------------------------------------------------------------------------------------------------


def log_gate(A_log: Tensor, a: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """g [.., H, K] in log space. With a lower bound, that bound is a factor: it clamps nothing."""
    rate, x = torch.exp(A_log)[:, None], a.float() + dt_bias
    if lower_bound:
        return float(lower_bound) * sigmoid(rate * x)
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
    return -rate * softplus


def sigmoid(x: Tensor) -> Tensor:
    """Not torch's own, which on a CPU rounds the last few elements of a tensor in another way than the rest."""
    return 1 / (1 + torch.exp(-x))


def normalised(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6)."""
    square = (x * x).sum(-1, keepdim=True)
    return x * torch.rsqrt(square + 1e-6)


def vectors(q: Tensor, k: Tensor, use_qk_l2norm: bool | None) -> tuple[Tensor, Tensor]:
    """q and k in float32, normalised unless the call says no."""
    Q, K = q.float(), k.float()
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = normalised(Q), normalised(K)
    return Q, K


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm):
    """kda_decode_k_last, kda_decode_k_last_bf16_state: states [batch_size, H, V, K]."""
    (Q, K), H = vectors(q[:, 0], k[:, 0], use_qk_l2norm), state.shape[1]
    alpha = torch.exp(log_gate(A_log, a[:, 0], dt_bias, lower_bound))
    beta = sigmoid(b[:, 0].float())
    o, S = step(state.float(), expand(Q, H), expand(K, H), v[:, 0].float(), alpha, beta)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return (factor * o)[:, None].to(v.dtype), S.to(state.dtype)


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm):
    """kda_decode_packed_k_last: a row of mixed_qkv holds the heads of q, of k and of v."""
    (B, H, D), length = state.shape[:3], mixed_qkv.shape[1]
    keys = (length - H * D) // 2
    q, k, v = (x.reshape(B, 1, -1, D) for x in mixed_qkv.split([keys, keys, H * D], dim=1))
    gates = A_log, a[:, None], dt_bias, b[:, None], lower_bound
    output, S = decode_k_last(q, k, v, state, *gates, scale, use_qk_l2norm)
    return output[:, 0], S


# --- states in a pool -------------------------------------------------------------------------------------------


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm
):  # fmt: skip
    """kda_decode_pool_k_last and its bf16_state: pool [num_slots, H, V, K] is updated in place; slot -1 skips a row."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    before, after = read_slots[rows].long(), write_slots[rows].long()
    output = torch.zeros_like(v)
    output[rows], S = decode_k_last(
        q[rows], k[rows], v[rows], pool[before], A_log, a[rows], dt_bias, b[rows], lower_bound, scale, use_qk_l2norm
    )  # fmt: skip
    pool[after] = S
    return output


def verify_k_last(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm
):  # fmt: skip
    """kda_verify_k_last: the state after each of T tokens goes to a slot of its own."""
    live = (initial_slots >= 0).nonzero()[:, 0]
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    S = pool[torch.where(accepted > 0, last, initial_slots)[live].long()]
    o = torch.zeros_like(v)
    for t in range(q.shape[1]):
        one = slice(t, t + 1)
        o[live, one], S = decode_k_last(
            q[live, one], k[live, one], v[live, one], S, A_log, a[live, one], dt_bias, b[live, one], lower_bound,
            scale, use_qk_l2norm,
        )  # fmt: skip
        pool[state_slots[live, t].long()] = S
    return o


# --- gradients --------------------------------------------------------------------------------------------------


def states_before(k, v, alpha, beta, S):
    """The state before each token of a sequence, [T, H, V, K]: key, alpha [T, H, K]; v [T, H, V]; S [H, V, K]."""
    before = []
    for t in range(len(k)):
        before.append(S)
        _, S = step(S, k[t], k[t], v[t], alpha[t], beta[t])
    return before


def token_backward(S, q, k, v, alpha, beta, do, dS):
    """One token, from its state before and the gradient of the state after. Returns dq, dk, dv, dg, dbeta and dS."""
    decayed = alpha[..., None, :] * S
    error = v - (decayed * k[..., None, :]).sum(-1)
    u = beta[..., None] * error
    dS = dS + do[..., :, None] * q[..., None, :]
    dq = ((decayed + u[..., :, None] * k[..., None, :]) * do[..., :, None]).sum(-2)
    du = (dS * k[..., None, :]).sum(-1)
    dv = beta[..., None] * du
    dk = (dS * u[..., :, None]).sum(-2) - (decayed * dv[..., :, None]).sum(-2)
    dS = dS - dv[..., :, None] * k[..., None, :]
    dg = (decayed * dS).sum(-2)  # of the logarithm: 0 at a reset
    return dq, dk, dv, dg, (du * error).sum(-1), alpha[..., None, :] * dS


def prefill_backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht):
    """kda_prefill_backward_k_last: all states of a sequence are kept, and its tokens are taken from the last."""
    (T, H), K = v.shape[:2], q.shape[-1]
    Q, key, values = expand(q, H), expand(k, H), v.float()
    ones = torch.ones(T, H, K, device=q.device)
    decays, writes = ones if g is None else torch.exp(g), ones[..., 0] if beta is None else beta
    ends = bounds_of(cu_seqlens, T)
    zeros = torch.zeros(len(ends) - 1, H, K, K, device=q.device)
    S, dS = (zeros if x is None else x for x in (initial_state, dht))
    reads = 0 * ones if do is None else (K**-0.5 if scale is None else float(scale)) * do.float()
    made = [torch.zeros(T, H, K, device=q.device) for _ in range(4)] + [torch.zeros(T, H, device=q.device)]
    dh0 = dS.clone()
    for n in range(len(ends) - 1):
        rows = slice(ends[n], ends[n + 1])
        before, D = states_before(key[rows], values[rows], decays[rows], writes[rows], S[n]), dS[n]
        for t in range(rows.stop - 1, rows.start - 1, -1):
            token = Q[t], key[t], values[t], decays[t], writes[t], reads[t]
            *found, D = token_backward(before[t - rows.start], *token, D)
            for whole, part in zip(made, found, strict=True):
                whole[t] = part
        dh0[n] = D
    dq, dk, dv, dg, dbeta = made
    folded = (x.unflatten(1, (of.shape[1], -1)).sum(2).to(of.dtype) for x, of in ((dq, q), (dk, k), (dv, v)))
    return *folded, dg, dbeta, dh0
