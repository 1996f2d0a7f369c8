"""Verify over a tree of drafts: one program for BV value channels of a head of a row.

A program walks over the row's tokens in their order. A token that follows the one before it finds the state in
registers; any other takes it from the buffer of steps, where this program has put it, or out of the pool. Where states
are stored as bfloat16, those of the buffer are rounded: the tokens before that one are done again, from the pool on.
"""

import torch
import triton
import triton.language as tl
from checks import require, require_drafts
from steps import blocking, normalised, raw_gates, step


@triton.jit
def take(
    S, token, q_ptr, k_ptr, v_ptr, A_log, a_ptr, dt_bias, b_ptr, output_ptr, scale, h, i, j,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, L2_NORM: tl.constexpr,
):  # fmt: skip
    """One token: its output to memory. Returns S after it."""
    i_in, j_in = i < D, j < D
    a, b = tl.load(a_ptr + token * H + h).to(tl.float32), tl.load(b_ptr + token * H + h).to(tl.float32)
    alpha, beta = raw_gates(a, dt_bias, A_log, b)
    qk = (token * (H // GROUP) + h // GROUP) * D
    q = tl.load(q_ptr + qk + j, mask=j_in, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + qk + j, mask=j_in, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + (token * H + h) * D + i, mask=i_in, other=0.0).to(tl.float32)
    if L2_NORM:
        q, k = normalised(q), normalised(k)
    o, S = step(S, q, k, v, alpha, beta)
    tl.store(output_ptr + (token * H + h) * D + i, (scale * o).to(output_ptr.dtype.element_ty), mask=i_in)
    return S


@triton.jit
def tree_kernel(
    q_ptr, k_ptr, v_ptr, pool_ptr, slots_ptr, steps_ptr, step_slots_ptr, drafts_ptr, parents_ptr, A_log_ptr, a_ptr,
    dt_bias_ptr, b_ptr, output_ptr, num_slots, pool_stride, steps_stride, scale,
    T: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, L2_NORM: tl.constexpr,
    REPEAT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(D, BV)
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    h, n = row % H, (row // H).to(tl.int64)
    i, j = block * BV + tl.arange(0, BV), tl.arange(0, BK)
    i_in, j_in = i < D, j < D
    inside = i_in[:, None] & j_in[None, :]
    part = h * (D * D) + i[:, None] * D + j[None, :]

    slot, to = tl.load(slots_ptr + n).to(tl.int64), tl.load(step_slots_ptr + n).to(tl.int64)
    count = tl.load(drafts_ptr + n)
    live = (slot >= 0) & (slot < num_slots) & (to >= 0) & (to < num_slots)  # -1, or a slot that is none: not followed
    count = tl.where(live, tl.minimum(count, T), 0)
    if count > 0:
        start_at, steps_at = pool_ptr + slot * pool_stride + part, steps_ptr + to * steps_stride + part
        S = tl.load(start_at, mask=inside, other=0.0).to(tl.float32)
        A_log = tl.load(A_log_ptr + h)
        dt_bias = tl.load(dt_bias_ptr + h).to(tl.float32)
        for t in range(count):
            parent = tl.load(parents_ptr + n * T + t)
            if parent != t - 1:
                if REPEAT:
                    S = tl.load(start_at, mask=inside, other=0.0).to(tl.float32)
                    above, first = 0, t  # a bit for each token to do again, and the first of them
                    while (parent >= 0) & (parent < first):
                        above, first = above | (1 << parent), parent
                        parent = tl.load(parents_ptr + n * T + first)
                    for u in range(first, t):
                        if (above >> u) & 1 != 0:
                            S = take(
                                S, n * T + u, q_ptr, k_ptr, v_ptr, A_log, a_ptr, dt_bias, b_ptr, output_ptr, scale, h,
                                i, j, H, GROUP, D, L2_NORM,
                            )  # fmt: skip
                else:
                    tl.debug_barrier()  # what other threads of this program have stored is there from here on
                    back = (parent >= 0) & (parent < t)
                    held = tl.load(steps_at + tl.maximum(parent, 0) * (H * D * D), mask=inside & back, other=0.0)
                    S = tl.where(back, held, tl.load(start_at, mask=inside, other=0.0))
            S = take(
                S, n * T + t, q_ptr, k_ptr, v_ptr, A_log, a_ptr, dt_bias, b_ptr, output_ptr, scale, h, i, j,
                H, GROUP, D, L2_NORM,
            )  # fmt: skip
            tl.store(steps_at + t * (H * D * D), S.to(steps_ptr.dtype.element_ty), mask=inside)
    for t in range(count, T):  # tokens that are not there
        nothing = tl.zeros([BV], dtype=output_ptr.dtype.element_ty)
        tl.store(output_ptr + ((n * T + t) * H + h) * D + i, nothing, mask=i_in)


def verify_tree(
    q, k, v, pool, slots, step_states, step_slots, drafts, parents, A_log, a, dt_bias, b, scale, use_qk_l2norm, output
):  # fmt: skip
    """pool [num_slots, H, D, D] and step_states [num_slots, T, H, D, D], float32 or bfloat16; parents [B, T]."""
    B, T, H, D, key_heads = require_drafts(
        q, k, v, pool, slots, step_states, step_slots, drafts, A_log, a, dt_bias, b, output
    )
    require(pool.device, slots.dtype, parents=(parents, (B, T)))
    if B == 0:
        return
    BV, num_warps = blocking(D)
    tree_kernel[(B * H * triton.cdiv(D, BV),)](
        q, k, v, pool, slots, step_states, step_slots, drafts, parents, A_log, a, dt_bias, b, output,
        pool.shape[0], pool.stride(0), step_states.stride(0), D**-0.5 if scale is None else float(scale),
        T=T, H=H, GROUP=H // key_heads, D=D, L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm),
        REPEAT=pool.dtype == torch.bfloat16, BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps,
        enable_fp_fusion=False,
    )  # fmt: skip
