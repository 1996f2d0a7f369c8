"""Prefill over a padded batch: one program for BV value channels of a head of a row.

A program walks over the positions of its row. At padding it writes zeros, and leaves its part of the state alone.
"""

import triton
import triton.language as tl
from prefill_checks import require_padded
from steps import blocking, step


@triton.jit(do_not_specialize=["T"])
def padded_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, mask_ptr, initial_ptr, output_ptr, final_ptr, T, scale,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    HAS_GATE: tl.constexpr, HAS_BETA: tl.constexpr, HAS_STATE: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(D, BV)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    h, n = pair % H, (pair // H).to(tl.int64)
    i, j = block * BV + tl.arange(0, BV), tl.arange(0, BK)
    i_in, j_in = i < D, j < D
    inside = i_in[:, None] & j_in[None, :]
    part = (n * H + h) * (D * D) + j[None, :] * D + i[:, None]  # stored [K, V]

    S = tl.zeros([BV, BK], dtype=tl.float32)
    if HAS_STATE:
        S = tl.load(initial_ptr + part, mask=inside, other=0.0)
    for t in range(T):
        token = n * T + t
        o_at = output_ptr + (token * H + h) * D + i
        if tl.load(mask_ptr + token) != 0:
            q = tl.load(q_ptr + (token * HQ + h // (H // HQ)) * D + j, mask=j_in, other=0.0).to(tl.float32)
            k = tl.load(k_ptr + (token * HK + h // (H // HK)) * D + j, mask=j_in, other=0.0).to(tl.float32)
            v = tl.load(v_ptr + (token * HV + h // (H // HV)) * D + i, mask=i_in, other=0.0).to(tl.float32)
            alpha, beta = 1.0, 1.0
            if HAS_GATE:
                alpha = tl.exp(tl.load(g_ptr + token * H + h))
            if HAS_BETA:
                beta = tl.load(beta_ptr + token * H + h)
            o, S = step(S, q, k, v, alpha, beta)
            tl.store(o_at, (scale * o).to(output_ptr.dtype.element_ty), mask=i_in)
        else:
            tl.store(o_at, tl.zeros([BV], dtype=output_ptr.dtype.element_ty), mask=i_in)
    tl.store(final_ptr + part, S, mask=inside)


def prefill_padded(q, k, v, g, beta, attention_mask, initial_state, scale, output, final_state):
    """q [B, T, HQ, D], k, v and gates beside it; initial_state and final_state [B, H, D, D], float32."""
    B, T, H, D = require_padded(q, k, v, g, beta, attention_mask, initial_state, output, final_state)
    BV, num_warps = blocking(D)
    padded_kernel[(B * H * triton.cdiv(D, BV),)](
        q, k, v, g, beta, attention_mask, initial_state, output, final_state, T,
        D**-0.5 if scale is None else float(scale),
        HQ=q.shape[2], HK=k.shape[2], HV=v.shape[2], H=H, D=D, HAS_GATE=g is not None, HAS_BETA=beta is not None,
        HAS_STATE=initial_state is not None, BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps,
        enable_fp_fusion=False,
    )  # fmt: skip
