"""Prefill with checkpoints at absolute edges: one program for BV value channels of a head of a sequence.

A program walks over the tokens of its sequence, and stores its part of the state where the next edge comes.
"""

import triton
import triton.language as tl
from prefill_checks import require_edges
from steps import blocking, step


@triton.jit(do_not_specialize=["interval"])
def edges_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, initial_ptr, positions_ptr, rows_ptr, output_ptr, final_ptr,
    checkpoints_ptr, interval, scale,
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
    part = h * (D * D) + i[:, None] * D + j[None, :]

    start, stop = tl.load(cu_seqlens_ptr + n).to(tl.int64), tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    row, last = tl.load(rows_ptr + n).to(tl.int64), tl.load(rows_ptr + n + 1).to(tl.int64)
    # The packed row behind which the next edge comes: positions count from the beginning of the request.
    edge = start + interval - tl.load(positions_ptr + n).to(tl.int64) % interval
    S = tl.zeros([BV, BK], dtype=tl.float32)
    if HAS_STATE:
        S = tl.load(initial_ptr + n * (H * D * D) + part, mask=inside, other=0.0)
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
        tl.store(output_ptr + (token * H + h) * D + i, (scale * o).to(output_ptr.dtype.element_ty), mask=i_in)
        if (token + 1 == edge) & (row < last):
            tl.store(checkpoints_ptr + row * (H * D * D) + part, S, mask=inside)
            row += 1
            edge += interval
    tl.store(final_ptr + n * (H * D * D) + part, S, mask=inside)
    while row < last:  # rows that no edge has
        tl.store(checkpoints_ptr + row * (H * D * D) + part, tl.zeros([BV, BK], dtype=tl.float32), mask=inside)
        row += 1


def prefill_checkpoints_absolute(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, start_positions, checkpoint_cu_starts, checkpoint_interval,
    output, final_state, checkpoints,
):  # fmt: skip
    """initial_state and final_state [num_seqs, H, D, D], checkpoints [num_checkpoints, H, D, D], float32."""
    H, D, num_seqs = require_edges(
        q, k, v, g, beta, cu_seqlens, initial_state, start_positions, checkpoint_cu_starts, output, final_state,
        checkpoints,
    )  # fmt: skip
    BV, num_warps = blocking(D)
    edges_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
        q, k, v, g, beta, cu_seqlens, initial_state, start_positions, checkpoint_cu_starts, output, final_state,
        checkpoints, int(checkpoint_interval), D**-0.5 if scale is None else float(scale),
        HQ=q.shape[1], HK=k.shape[1], HV=v.shape[1], H=H, D=D, HAS_GATE=g is not None, HAS_BETA=beta is not None,
        HAS_STATE=initial_state is not None, BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps,
        enable_fp_fusion=False,
    )  # fmt: skip
