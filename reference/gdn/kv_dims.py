"""The recurrence for heads of keys and of values that differ in size, with write strengths up to 2.

Source: Grazzi, Siems, Zela, Franke, Hutter and Pontil, "Unlocking State-Tracking in Linear RNNs Through Negative
Eigenvalues", ICLR 2025 (arXiv:2411.12537). Along a key of norm one, alpha (I - beta k k^T) has the eigenvalue
alpha (1 - beta): negative where beta is above 1. A sigmoid ends at 1, so that the gate is doubled.

`step` in gated_delta_net.py knows nothing of either: S is [V, K] whatever the two are. Each function here is its
namesake there, where K = V and beta = sigmoid(b). Where no scale is given it is 1 / sqrt(K), of the size of keys.
"""

import torch
from torch import Tensor

from .gated_delta_net import (
    arithmetic_type,
    default_scale,
    expand_heads,
    forget_gate_raw,
    l2_normalise,
    prefill_k_last,
    step,
)


def update_gate_raw(b: Tensor, allow_neg_eigval: bool) -> Tensor:
    """beta = sigmoid(b), in [0, 1]; with allow_neg_eigval 2 sigmoid(b), in [0, 2]."""
    return 2 * torch.sigmoid(b) if allow_neg_eigval else torch.sigmoid(b)


def prefill_k_last_kv_dims(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Ragged batch of whole sequences, linear forget gate, states [num_seqs, num_sab_heads, V, K].

    q [total_seq_len, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V]; g (alpha itself) and beta, in
    [0, 2], [total_seq_len, num_sab_heads]. Returns output [total_seq_len, num_o_heads, V] and final_state.
    """
    return prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def decode_k_last_kv_dims(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    allow_neg_eigval: bool,
) -> tuple[Tensor, Tensor]:
    """One token a sequence, raw gates, state [batch_size, num_v_heads, V, K].

    q, k [batch_size, 1, num_k_heads, K], v [batch_size, 1, num_v_heads, V]; A_log, dt_bias [num_v_heads]; a, b
    [batch_size, 1, num_v_heads]. Returns output [batch_size, 1, num_v_heads, V] in v's type and new_state in state's.
    """
    dtype, H = arithmetic_type(q, k, v, state, A_log, a, dt_bias, b), state.shape[1]
    Q, K, V = (x[:, 0].to(dtype) for x in (q, k, v))  # [B, heads, K or V]
    if use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    alpha = forget_gate_raw(A_log.to(dtype), a[:, 0].to(dtype), dt_bias.to(dtype))  # [B, H]
    beta = update_gate_raw(b[:, 0].to(dtype), allow_neg_eigval)
    factor = default_scale(q.shape[-1], scale)
    o, S = step(state.to(dtype), expand_heads(Q, H), expand_heads(K, H), V, alpha, beta, factor)
    return o[:, None].to(v.dtype), S.to(state.dtype)


def decode_pool_k_last_kv_dims(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    allow_neg_eigval: bool,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last_kv_dims` on states in a pool [num_slots, num_v_heads, V, K].

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]; where they are -1 the row is
    skipped: its output is zero. Returns output and the pool afterwards; the pool given stays as it was.
    """
    rows = (read_slots >= 0).nonzero()[:, 0]
    output, after = torch.zeros_like(v), pool.clone()
    output[rows], after[write_slots[rows].long()] = decode_k_last_kv_dims(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], scale,
        use_qk_l2norm, allow_neg_eigval,
    )  # fmt: skip
    return output, after


def verify_k_last_kv_dims(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    allow_neg_eigval: bool,
) -> tuple[Tensor, Tensor]:
    """Speculative decoding: T draft tokens a sequence, the state after each in a slot of its own.

    q, k [batch_size, T, num_k_heads, K], v [batch_size, T, num_v_heads, V]; a, b [batch_size, T, num_v_heads]; pool
    [num_slots, num_v_heads, V, K]. Row n starts from initial_slots[n] where accepted[n] is 0, else from
    state_slots[n, accepted[n] - 1]; the state after token t goes to state_slots[n, t]. A row whose slots are -1 is
    skipped: its output is zero. Returns output [batch_size, T, num_v_heads, V] and the pool afterwards.
    """
    output, after = torch.zeros_like(v), pool.clone()
    wide = arithmetic_type(q, k, v, pool, A_log, a, dt_bias, b)
    for n in (initial_slots >= 0).nonzero()[:, 0].tolist():
        count = int(accepted[n])
        first = int(state_slots[n, count - 1]) if count else int(initial_slots[n])
        S = pool[first][None].to(wide)  # rounded only where it is stored
        for t in range(q.shape[1]):
            one = (slice(n, n + 1), slice(t, t + 1))
            output[one], S = decode_k_last_kv_dims(
                q[one], k[one], v[one], S, A_log, a[one], dt_bias, b[one], scale, use_qk_l2norm, allow_neg_eigval
            )  # fmt: skip
            after[int(state_slots[n, t])] = S[0].to(pool.dtype)
    return output, after
