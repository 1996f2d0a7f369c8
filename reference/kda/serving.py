"""How an engine calls the operator: q, k and v in one row, states in slots, and those after single tokens.

`kimi_delta_attention.py` is the arithmetic. Everything here says where vectors and states come from, and where they go.
"""

import torch
from torch import Tensor

from .kimi_delta_attention import arithmetic_type, decode_k_last, prefill_k_last

# --- prefill that keeps states on the way -----------------------------------------------------------------------


def prefill_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`prefill_k_last`, and the state after every checkpoint_interval tokens of each sequence.

    A sequence is cut after every so many tokens: where a piece is whole, the state at its end is a checkpoint, and the
    next piece starts from it. Those of sequence n are rows checkpoint_cu_starts[n] to checkpoint_cu_starts[n + 1], a
    tensor [num_seqs + 1]. Returns output, final_state and checkpoints [num_checkpoints, num_v_heads, V, K], in
    initial_state's type.
    """
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    H, size = v.shape[1:]
    bounds, kept = cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    if initial_state is None:
        states = torch.zeros(len(bounds) - 1, H, size, size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    output, checkpoints = torch.zeros_like(v), states.new_zeros(kept[-1], H, size, size)
    for n in range(len(bounds) - 1):
        for i, start in enumerate(range(bounds[n], bounds[n + 1], checkpoint_interval)):
            piece = slice(start, min(start + checkpoint_interval, bounds[n + 1]))
            count = piece.stop - start
            output[piece], states[n : n + 1] = prefill_k_last(
                q[piece], k[piece], v[piece], None if g is None else g[piece], None if beta is None else beta[piece],
                torch.tensor([0, count]), states[n : n + 1], scale,
            )  # fmt: skip
            if count == checkpoint_interval:
                checkpoints[kept[n] + i] = states[n]
    state_type = dtype if initial_state is None else initial_state.dtype
    return output, states.to(state_type), checkpoints.to(state_type)


# --- decode from one row for q, k and v -------------------------------------------------------------------------


def decode_packed_k_last(
    mixed_qkv: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` with q, k and v side by side, as the convolution before them leaves a row.

    mixed_qkv [batch_size, 2 key_dim + value_dim]: all query heads, then all key heads, then all value heads; a
    [batch_size, num_v_heads, K], b [batch_size, num_v_heads]. Returns output [batch_size, num_v_heads, V] and
    new_state.
    """
    batch_size, num_v_heads, size = state.shape[:3]
    value_dim = num_v_heads * size
    key_dim = (mixed_qkv.shape[1] - value_dim) // 2
    q, k, v = (x.reshape(batch_size, 1, -1, size) for x in mixed_qkv.split([key_dim, key_dim, value_dim], dim=1))
    gates = A_log, a[:, None], dt_bias, b[:, None], lower_bound
    output, S = decode_k_last(q, k, v, state, *gates, scale, use_qk_l2norm)
    return output[:, 0], S


# --- decode from a pool of states -------------------------------------------------------------------------------


def decode_pool_k_last(
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
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` on states in a pool [num_slots, num_v_heads, V, K].

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]; where they are -1 the row is
    skipped: its output is zero. Returns output and the pool afterwards; the pool given stays as it was.
    """
    output, after = torch.zeros_like(v), pool.clone()
    rows = (read_slots >= 0).nonzero()[:, 0]
    o, S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], lower_bound, scale,
        use_qk_l2norm,
    )  # fmt: skip
    output[rows], after[write_slots[rows].long()] = o, S
    return output, after


# --- verify: several draft tokens a sequence --------------------------------------------------------------------


def verify_k_last(
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
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """Speculative decoding: T draft tokens a sequence, the state after each in a slot of its own.

    q, k [batch_size, T, num_k_heads, K], v [.., num_v_heads, V]; a [batch_size, T, num_v_heads, K], b [batch_size, T,
    num_v_heads]; pool [num_slots, num_v_heads, V, K]. How many of the tokens are accepted is known only afterwards, and
    given to the next call: accepted [batch_size] is that count of the step before. Row n starts from slot
    state_slots[n, accepted[n] - 1], where that step left the state after its last accepted token; with accepted[n] = 0
    from initial_slots[n]. The state after token t goes to slot state_slots[n, t]. A row whose slots are -1 is skipped:
    its output is zero. Returns output [batch_size, T, num_v_heads, V] and the pool afterwards.
    """
    output, after = torch.zeros_like(v), pool.clone()
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    rows = (initial_slots >= 0).nonzero()[:, 0]
    start = torch.where(accepted > 0, last, initial_slots)[rows].long()
    S = pool[start].to(arithmetic_type(q, pool))  # rounded only where it is stored
    for t in range(q.shape[1]):
        one = slice(t, t + 1)
        output[rows, one], S = decode_k_last(
            q[rows, one], k[rows, one], v[rows, one], S, A_log, a[rows, one], dt_bias, b[rows, one], lower_bound,
            scale, use_qk_l2norm,
        )  # fmt: skip
        after[state_slots[rows, t].long()] = S.to(pool.dtype)
    return output, after
