"""Gated delta rule in plain PyTorch, token by token: at step t, the t-th token of every sequence that still has one.

States are [.., V, K] inside; float32 throughout, outputs rounded once. S x is written as a product and a sum, not as a
matrix product: those may round their operands to TensorFloat-32 on a GPU when the caller has allowed it, sums never do.
"""

import torch
from torch import Tensor


def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of N sequences. S [N, H, V, K]; q, k [N, H, K]; v [N, H, V]; alpha, beta [N, H]. Returns (S q, S)."""
    S = alpha[..., None, None] * S
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    return (S * q[..., None, :]).sum(-1), S


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill(q, k, v, alpha, beta, cu_seqlens, S, scale, keep=None):
    """S: float32 [num_seqs, H, V, K], or None. alpha, beta: [T, H], or None for ones. `keep`, with states and the
    sequences that they are of after t tokens, is told of every step. Returns output, S."""
    T, key_size, value_size = q.shape[0], q.shape[-1], v.shape[-1]
    H = max(q.shape[1], v.shape[1])
    factor = key_size**-0.5 if scale is None else float(scale)
    Q, K, V = (expand_heads(x.float(), H) for x in (q, k, v))  # [T, H, size]
    alpha, beta = (torch.ones(T, H, device=q.device) if x is None else x.float() for x in (alpha, beta))
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    starts = cu_seqlens[:-1]
    S = torch.zeros(len(lengths), H, value_size, key_size, device=q.device) if S is None else S.clone()

    # Longest first, the sequences alive at step t are the first so many: a slice, not a mask.
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    order_index = torch.tensor(order, dtype=torch.int64, device=q.device)
    S, starts = S[order_index], starts[order_index]
    output = torch.empty(T, H, value_size, device=q.device)
    alive = len(order)
    for t in range(max(lengths, default=0)):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        rows = starts[:alive] + t  # of the packed tensors, one a sequence
        o, S[:alive] = step(S[:alive], Q[rows], K[rows], V[rows], alpha[rows], beta[rows])
        output[rows] = factor * o
        if keep is not None:
            keep(t + 1, order_index[:alive], S[:alive])
    return output.to(v.dtype), S[torch.argsort(order_index)]


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last, gdn_prefill_k_last_kv_dims: states [num_seqs, H, V, K]; g is alpha itself."""
    return prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """gdn_prefill_checkpoints: as gdn_prefill_k_last, with the state after every checkpoint_interval tokens."""
    H, D = max(q.shape[1], v.shape[1]), q.shape[-1]
    checkpoints = torch.empty(int(checkpoint_cu_starts[-1]), H, D, D, device=q.device)

    def keep(tokens, sequences, S):
        if tokens % checkpoint_interval == 0:
            checkpoints[checkpoint_cu_starts[sequences] + tokens // checkpoint_interval - 1] = S

    output, S = prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, keep)
    return output, S, checkpoints


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first: states [num_seqs, H, K, V]; alpha = exp(g)."""
    alpha = None if g is None else torch.exp(g.float())
    initial = None if initial_state is None else initial_state.mT.contiguous()
    output, S = prefill(q, k, v, alpha, beta, cu_seqlens, initial, scale)
    return output, S.mT.contiguous()


# --- decode -----------------------------------------------------------------------------------------------------


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval=False):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state, gdn_decode_k_last_kv_dims: state [batch_size, H, V, K]."""
    H, key_size = state.shape[1], q.shape[-1]
    Q, K, V = (x[:, 0].float() for x in (q, k, v))  # [B, heads, size]
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K, V = (expand_heads(x, H) for x in (Q, K, V))
    x = a[:, 0].float() + dt_bias.float()
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))  # torch's own has a threshold
    alpha = torch.exp(-torch.exp(A_log.float()) * softplus)
    beta = sigmoid(b[:, 0].float())
    o, S = step(state.float(), Q, K, V, alpha, 2 * beta if allow_neg_eigval else beta)
    factor = key_size**-0.5 if scale is None else float(scale)
    return (factor * o)[:, None].to(v.dtype), S.to(state.dtype)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_first, gdn_decode_k_first_bf16_state: state [batch_size, H, K, V]."""
    S = state.mT.contiguous()
    output, S = decode_k_last(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return output, S.mT.contiguous()


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_packed_k_last: q, k and v side by side, [batch_size, 2 key_dim + value_dim]."""
    B, H, D, _ = state.shape
    keys = (mixed_qkv.shape[1] - H * D) // 2
    q, k, v = (x.reshape(B, 1, -1, D) for x in mixed_qkv.split([keys, keys, H * D], dim=1))
    output, S = decode_k_last(q, k, v, state, A_log, a[:, None], dt_bias, b[:, None], scale, use_qk_l2norm)
    return output[:, 0], S


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval=False
):  # fmt: skip
    """gdn_decode_pool_k_last, its bf16_state and its kv_dims: pool [num_slots, H, V, K] is updated in place; slot -1
    skips a row."""
    rows = (read_slots >= 0).nonzero()[:, 0]
    output = torch.zeros_like(v)
    output[rows], S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], scale,
        use_qk_l2norm, allow_neg_eigval,
    )  # fmt: skip
    pool[write_slots[rows].long()] = S
    return output


def verify_k_last(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm,
    allow_neg_eigval=False,
):  # fmt: skip
    """gdn_verify_k_last, gdn_verify_k_last_kv_dims: the state after each of T tokens goes to a slot of its own."""
    rows = (initial_slots >= 0).nonzero()[:, 0]
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    S = pool[torch.where(accepted > 0, last, initial_slots)[rows].long()]
    output = torch.zeros_like(v)
    for t in range(q.shape[1]):
        one = slice(t, t + 1)
        output[rows, one], S = decode_k_last(
            q[rows, one], k[rows, one], v[rows, one], S, A_log, a[rows, one], dt_bias, b[rows, one], scale,
            use_qk_l2norm, allow_neg_eigval,
        )  # fmt: skip
        pool[state_slots[rows, t].long()] = S
    return output


def sigmoid(x: Tensor) -> Tensor:
    """Not torch's own, which on a CPU rounds the last few elements of a tensor in another way than the rest."""
    return 1 / (1 + torch.exp(-x))


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """[.., n, D] -> [.., heads, D]: head h of the result is head h // (heads / n)."""
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)
