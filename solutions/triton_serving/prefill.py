"""Prefill from slots of a pool and back into them: one program for BV value channels of a head of a sequence.

A program walks over the tokens of its sequence with its part of the state in registers. It is the contract in its
plainest form; triton_chunkwise has the form that tensor cores are fast at.
"""

import triton
import triton.language as tl
from checks import require_prefill
from steps import blocking, step


@triton.jit(do_not_specialize=["num_slots", "total"])
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, held_ptr, output_ptr,
    num_slots, total, slot_stride, scale,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    HAS_GATE: tl.constexpr, HAS_BETA: tl.constexpr, FIRST: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(D, BV)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    h, n = pair % H, pair // H
    i, j = block * BV + tl.arange(0, BV), tl.arange(0, BK)
    i_in, j_in = i < D, j < D
    inside = i_in[:, None] & j_in[None, :]

    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    stop = tl.minimum(tl.load(cu_seqlens_ptr + n + 1).to(tl.int64), total)
    slot = tl.load(slots_ptr + n).to(tl.int64)
    live = (slot >= FIRST) & (slot < num_slots)  # a slot that is none is not followed
    if start < stop:
        if live:
            held = tl.load(held_ptr + n) != 0
            at = pool_ptr + slot * slot_stride + h * (D * D) + i[:, None] * D + j[None, :]
            # What a slot holds that the sequence does not go on from is not even loaded.
            S = tl.load(at, mask=inside & held, other=0.0).to(tl.float32)
            for token in range(start, stop):
                q = tl.load(q_ptr + (token * HQ + h // (H // HQ)) * D + j, mask=j_in, other=0.0).to(tl.float32)
                k = tl.load(k_ptr + (token * HK + h // (H // HK)) * D + j, mask=j_in, other=0.0).to(tl.float32)
                v = tl.load(v_ptr + (token * HV + h // (H // HV)) * D + i, mask=i_in, other=0.0).to(tl.float32)
                alpha, beta = 1.0, 1.0
                if HAS_GATE:
                    alpha = tl.load(g_ptr + token * H + h)
                if HAS_BETA:
                    beta = tl.load(beta_ptr + token * H + h)
                o, S = step(S, q, k, v, alpha, beta)
                o_at = output_ptr + (token * H + h) * D + i
                tl.store(o_at, (scale * o).to(output_ptr.dtype.element_ty), mask=i_in)
            tl.store(at, S.to(pool_ptr.dtype.element_ty), mask=inside)
        else:
            for token in range(start, stop):
                nothing = tl.zeros([BV], dtype=output_ptr.dtype.element_ty)
                tl.store(output_ptr + (token * H + h) * D + i, nothing, mask=i_in)


def prefill_pool_slot_zero(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale, output):
    """As `prefill_pool`, in a pool whose slot 0 stands for none."""
    prefill_pool(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale, output, first=1)


def prefill_pool(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, scale, output, first=0):
    """pool [num_slots, H, D, D], float32 or bfloat16, updated in place. Rows behind the last one are left alone."""
    H, D, num_seqs = require_prefill(q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, output)
    BV, num_warps = blocking(D)
    prefill_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
        q, k, v, g, beta, cu_seqlens, pool, slots, has_initial_state, output,
        pool.shape[0], len(q), pool.stride(0), D**-0.5 if scale is None else float(scale),
        HQ=q.shape[1], HK=k.shape[1], HV=v.shape[1], H=H, D=D, HAS_GATE=g is not None, HAS_BETA=beta is not None,
        FIRST=first, BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps, enable_fp_fusion=False,
    )  # fmt: skip
