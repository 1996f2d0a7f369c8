"""What an engine keeps between calls: states in slots, and those after single tokens until it is known which count.

`step` and `decode_k_last` of gated_delta_net.py are the arithmetic. Everything here says where a state comes from,
where it goes, and which tokens of a batch there are at all.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import chunkwise
from .gated_delta_net import arithmetic_type, decode_k_last, prefill_k_last

# --- verify with a number of drafts for each row ------------------------------------------------------------------


def verify_drafts_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    slots: Tensor,
    step_states: Tensor,
    step_slots: Tensor,
    drafts: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """Speculative decoding: row n has drafts[n] of T tokens, none to all, and what they make of its state is set aside.

    q [batch_size, T, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V]; a, b [batch_size, T,
    num_sab_heads]. Row n starts from slot slots[n] of pool [num_slots, num_sab_heads, V, K], which stays as it is. The
    state after token t goes to step_states[step_slots[n], t], of [num_slots, T, num_sab_heads, V, K]. Tokens from
    drafts[n] on are not there: their outputs are zero, and their places in step_states stay. A row whose slots are -1
    is skipped. Returns output [batch_size, T, num_o_heads, V] and step_states afterwards.
    """
    output, after = torch.zeros_like(v), step_states.clone()
    live = (slots >= 0).nonzero()[:, 0]
    S = pool[slots[live].long()].to(arithmetic_type(q, pool))  # rounded only where it is stored
    for t in range(q.shape[1]):
        there = drafts[live] > t
        rows, one = live[there], slice(t, t + 1)
        o, S[there] = decode_k_last(
            q[rows, one], k[rows, one], v[rows, one], S[there], A_log, a[rows, one], dt_bias, b[rows, one], scale,
            use_qk_l2norm,
        )  # fmt: skip
        output[rows, one] = o
        after[step_slots[rows].long(), t] = S[there].to(after.dtype)
    return output, after


# --- verify over a tree of drafts ---------------------------------------------------------------------------------


def verify_tree_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    slots: Tensor,
    step_states: Tensor,
    step_slots: Tensor,
    drafts: Tensor,
    parents: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:
    """`verify_drafts_k_last` where drafts are a tree: token t of row n starts from the state after token
    parents[n, t] < t, or, where that is -1, from slot slots[n] of the pool.

    With parents[n, t] = t - 1 it is `verify_drafts_k_last`. Returns output and step_states afterwards.
    """
    output, after = torch.zeros_like(v), step_states.clone()
    for n in (slots >= 0).nonzero()[:, 0].tolist():
        states = {-1: pool[slots[n : n + 1].long()].to(arithmetic_type(q, pool))}  # after each token
        for t in range(int(drafts[n])):
            one = (slice(n, n + 1), slice(t, t + 1))
            output[one], states[t] = decode_k_last(
                q[one], k[one], v[one], states[int(parents[n, t])], A_log, a[one], dt_bias, b[one], scale,
                use_qk_l2norm,
            )  # fmt: skip
            after[int(step_slots[n]), t] = states[t][0].to(after.dtype)
    return output, after


# --- commit: which step counts ------------------------------------------------------------------------------------


def commit_states_k_last(
    pool: Tensor, slots: Tensor, step_states: Tensor, step_slots: Tensor, accepted: Tensor
) -> Tensor:
    """What follows a verify that has set its states aside, once it is known how many tokens count.

    pool [num_slots, num_v_heads, V, K], step_states [num_slots, T, num_v_heads, V, K]. Slot slots[n] of the pool gets
    the state after token accepted[n] of row n, counted from 1: step_states[step_slots[n], accepted[n] - 1]. With
    accepted[n] = 0, or a slot of -1, it stays. Returns the pool afterwards.
    """
    after = pool.clone()
    rows = ((slots >= 0) & (accepted > 0)).nonzero()[:, 0]
    after[slots[rows].long()] = step_states[step_slots[rows].long(), accepted[rows].long() - 1]
    return after


# --- prefill on a pool --------------------------------------------------------------------------------------------


def prefill_pool_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    pool: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """`prefill_k_last` on states in a pool [num_slots, num_sab_heads, V, K], one slot for each sequence.

    q, k, v, g, beta as there, in packed tensors that may have rows behind the last sequence, which belong to none.
    Sequence n starts from slot slots[n], or from zeros where has_initial_state[n] is false, and leaves its state there;
    an empty one leaves its slot as it is. Where slots[n] is -1 the sequence is skipped. Returns output, zero where
    nothing is written, and the pool afterwards.
    """
    return _in_pool(prefill_k_last, q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale)


def prefill_pool_k_last_slot_zero(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    pool: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """`prefill_pool_k_last` where slot 0 stands for none: its sequences are skipped, and it is neither read nor
    written."""
    known = torch.where(slots > 0, slots, -1)
    return _in_pool(prefill_k_last, q, k, v, g, beta, cu_seqlens, pool, known, has_initial_state, scale)


def prefill_pool_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    pool: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    scale: float | None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `prefill_pool_k_last`, in chunks of `chunk_size` tokens."""
    prefill = partial(chunkwise.prefill_k_last, chunk_size=chunk_size)
    return _in_pool(prefill, q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale)


def prefill_pool_slot_zero_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    pool: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    scale: float | None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """As `prefill_pool_k_last_slot_zero`, in chunks of `chunk_size` tokens."""
    known, prefill = torch.where(slots > 0, slots, -1), partial(chunkwise.prefill_k_last, chunk_size=chunk_size)
    return _in_pool(prefill, q, k, v, g, beta, cu_seqlens, pool, known, has_initial_state, scale)


def _in_pool(
    prefill: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor, g: Tensor | None,
    beta: Tensor | None, cu_seqlens: Tensor, pool: Tensor, slots: Tensor, has_initial_state: Tensor,
    scale: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`prefill` of one sequence after the other, from its slot and back to it."""
    wide = arithmetic_type(q, k, v, g, beta, pool)
    output = torch.zeros(q.shape[0], pool.shape[1], v.shape[-1], dtype=v.dtype, device=v.device)
    after, bounds = pool.clone(), cu_seqlens.tolist()
    for n, slot in enumerate(slots.tolist()):
        rows = slice(bounds[n], bounds[n + 1])
        if slot < 0 or rows.start == rows.stop:
            continue
        S = pool[slot].to(wide) if has_initial_state[n] else torch.zeros_like(pool[slot], dtype=wide)
        output[rows], S = prefill(
            q[rows], k[rows], v[rows], None if g is None else g[rows], None if beta is None else beta[rows],
            torch.tensor([0, rows.stop - rows.start]), S[None], scale,
        )  # fmt: skip
        after[slot] = S[0].to(pool.dtype)
    return output, after
