"""All between the projections and the rule in one pass: convolution, SiLU, norms of q and k, gates.

A program owns a head of some tokens of one sequence, so that the norm is a sum over what it has. Those of value heads
make the gates as well. States are read and written as in conv1d.py.
"""

import torch
import triton
import triton.language as tl
from block import gates
from checks import DEBUG, INTERPRETED, check_bounds, require, require_dimensions
from conv1d import blocks_before, check_state, convolved, sequence_of

LARGEST = 256  # elements of a head


def blocking(size: int) -> tuple[int, int]:
    """(tokens of a program, num_warps): the one place to tune."""
    if INTERPRETED:
        return 64, 1  # it charges by the program
    return (32, 4) if size <= 128 else (16, 4)


@triton.jit
def conv_gates_kernel(
    x_ptr, weight_ptr, bias_ptr, a_ptr, b_ptr, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, flags_ptr,
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, num_seqs, num_slots, slot_stride,
    HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr,
    BT: tl.constexpr, BD: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    HEADS: tl.constexpr = 2 * HK + H
    head, block = tl.program_id(0) % HEADS, (tl.program_id(0) // HEADS).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, block, num_seqs, BT)
    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    first = start + blocks_before(block, cu_seqlens_ptr, n, BT) * BT
    if first >= stop:  # a block that no sequence has, or an empty sequence: its state stays
        return

    d = tl.arange(0, BD)
    d_in = d < D
    t = first + tl.arange(0, BT)
    row = t < stop
    slot = tl.load(slots_ptr + n).to(tl.int64)
    live = (slot >= 0) & (slot < num_slots)  # -1, or a slot that is none: never followed
    y = tl.zeros([BT, BD], dtype=tl.float32)
    if live:
        y = convolved(
            x_ptr, weight_ptr, bias_ptr, pool_ptr + slot * slot_stride, flags_ptr + n, start, stop, first, t,
            head * D + d, d_in, HEADS * D, W, HAS_BIAS, BT, BD, WP,
        )  # fmt: skip

    to = q_ptr
    h, heads = head, HK
    if head >= 2 * HK:
        to, h, heads = v_ptr, head - 2 * HK, H
        at = t * H + h
        raw_a = tl.load(a_ptr + at, mask=row, other=0.0).to(tl.float32)
        raw_b = tl.load(b_ptr + at, mask=row, other=0.0).to(tl.float32)
        A_log, dt_bias = tl.load(A_log_ptr + h).to(tl.float32), tl.load(dt_bias_ptr + h).to(tl.float32)
        alpha, beta = gates(raw_a, raw_b, A_log, dt_bias)
        tl.store(g_ptr + at, tl.where(live, alpha, 1.0), mask=row)  # alpha 1, beta 0: a state stays as it is
        tl.store(beta_ptr + at, tl.where(live, beta, 0.0), mask=row)
    else:
        if head >= HK:
            to, h = k_ptr, head - HK
        y = tl.where(d_in[None, :], y, 0.0)
        y = y / tl.sqrt(tl.sum(y * y, axis=1) + 1e-6)[:, None]
    to_at = to + (t * heads + h)[:, None] * D + d[None, :]
    tl.store(to_at, y.to(q_ptr.dtype.element_ty), mask=row[:, None] & d_in[None, :])


def conv_gates_prefill(
    x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim,
    q, k, v, g, beta,
):  # fmt: skip
    """gdn_conv_gates_prefill: x of bfloat16, float16 or float32 as the states have it; conv_states [slots, C, W - 1],
    updated in place."""
    require_dimensions(1, cu_seqlens=cu_seqlens)
    require_dimensions(2, x=x, a=a)
    num_seqs, (T, H), D = len(cu_seqlens) - 1, a.shape, int(head_dim)
    if num_seqs < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    if not 0 < D <= LARGEST:
        raise ValueError(f"heads of {D} elements are not served: 1 to {LARGEST} are")
    HK, rest = divmod(x.shape[1] - H * D, 2 * D)
    if rest or HK <= 0 or H % HK:
        raise ValueError(f"rows of {x.shape[1]} channels are not q, k and v of {H} value heads of {D}")
    C, W = check_state(conv_weight, conv_bias, conv_states, slots, num_seqs, x.device)
    require(x.device, conv_states.dtype, x=(x, (T, C)), q=(q, (T, HK, D)), k=(k, (T, HK, D)), v=(v, (T, H, D)))
    require(x.device, x.dtype, a=(a, (T, H)), b=(b, (T, H)), dt_bias=(dt_bias, (H,)))
    require(x.device, torch.float32, A_log=(A_log, (H,)), g=(g, (T, H)), beta=(beta, (T, H)))
    require(x.device, torch.int64, cu_seqlens=(cu_seqlens, (num_seqs + 1,)))
    require(x.device, torch.bool, has_initial_state=(has_initial_state, (num_seqs,)))
    if DEBUG:
        check_bounds("cu_seqlens", cu_seqlens, T)
    BT, num_warps = blocking(D)
    blocks = T // BT + num_seqs
    conv_gates_kernel[(blocks * (2 * HK + H),)](
        x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots,
        has_initial_state.view(torch.uint8), q, k, v, g, beta, num_seqs, len(conv_states), conv_states.stride(0),
        HK=HK, H=H, D=D, W=W, HAS_BIAS=conv_bias is not None, BT=BT, BD=triton.next_power_of_2(D),
        WP=triton.next_power_of_2(W - 1), num_warps=num_warps,
    )  # fmt: skip
