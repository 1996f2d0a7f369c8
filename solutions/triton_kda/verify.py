"""Kimi Delta Attention for a few draft tokens of every sequence of a batch, on states [V, K] in a pool.

A program owns BV value channels of one head of one row, as in decode.py, from its first token to its last. It reads its
part of the state before it writes any, so a row may start from a slot that it writes.
"""

import torch
import triton
import triton.language as tl
from arguments import require
from decode import DEBUG, INTERPRETED, require_gates, require_pool
from gates import log2_decay


@triton.jit
def verify_kernel(
    q_ptr, k_ptr, v_ptr, pool_ptr, initial_ptr, slots_ptr, accepted_ptr, A_log_ptr, a_ptr, dt_bias_ptr, b_ptr,
    output_ptr, num_slots, slot_stride, scale, lower_bound,
    T: tl.constexpr, TP: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr,
    L2_NORM: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks: tl.constexpr = (D + BV - 1) // BV
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    h, n = row % H, (row // H).to(tl.int64)
    i = block * BV + tl.arange(0, BV)
    j = tl.arange(0, BK)
    i_in, j_in = i < D, j < D
    output_at = output_ptr + (n * T * H + h) * D + i

    t_all = tl.arange(0, TP)
    t_in = t_all < T
    initial, accepted = tl.load(initial_ptr + n), tl.load(accepted_ptr + n)
    slots = tl.load(slots_ptr + n * T + t_all, mask=t_in, other=0)
    low, high = tl.minimum(initial, tl.min(slots, axis=0)), tl.maximum(initial, tl.max(slots, axis=0))
    if (low < 0) | (high >= num_slots) | (accepted < 0) | (accepted > T):  # -1, or none: never followed
        for t in range(T):
            tl.store(output_at + t * (H * D), tl.zeros([BV], dtype=output_ptr.dtype.element_ty), mask=i_in)
        return
    last = tl.sum(tl.where(t_all == accepted - 1, slots, 0), axis=0)
    source = tl.where(accepted == 0, initial, last).to(tl.int64)

    stride = tl.cast(slot_stride, tl.int64)  # states outgrow 32 bits
    part = h * (D * D) + i[:, None] * D + j[None, :]
    inside = i_in[:, None] & j_in[None, :]
    S = tl.load(pool_ptr + source * stride + part, mask=inside, other=0.0).to(tl.float32)  # [BV, BK]
    bias = tl.load(dt_bias_ptr + h * D + j, mask=j_in, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(A_log_ptr + h).to(tl.float32))
    for t in range(T):
        key_head, head = (n * T + t) * (H // GROUP) + h // GROUP, (n * T + t) * H + h
        q = tl.load(q_ptr + key_head * D + j, mask=j_in, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + key_head * D + j, mask=j_in, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + head * D + i, mask=i_in, other=0.0).to(tl.float32)
        a = tl.load(a_ptr + head * D + j, mask=j_in, other=0.0).to(tl.float32)
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + head).to(tl.float32)))
        if L2_NORM:
            q = q / tl.sqrt(tl.sum(q * q, axis=0) + 1e-6)
            k = k / tl.sqrt(tl.sum(k * k, axis=0) + 1e-6)
        S *= tl.exp2(log2_decay(a, bias, rate, lower_bound, GATE))[None, :]
        u = beta * (v - tl.sum(S * k[None, :], axis=1))
        o = scale * (tl.sum(S * q[None, :], axis=1) + u * tl.sum(q * k, axis=0))
        S += u[:, None] * k[None, :]
        tl.store(output_at + t * (H * D), o.to(output_ptr.dtype.element_ty), mask=i_in)
        target = tl.load(slots_ptr + n * T + t).to(tl.int64)
        tl.store(pool_ptr + target * stride + part, S.to(pool_ptr.dtype.element_ty), mask=inside)


def verify_k_last(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output
):  # fmt: skip
    """kda_verify_k_last: pool [num_slots, H, V, K]; q, k, v, a and b hold T tokens a row, and T slots their states."""
    require_pool(pool)
    num_slots, H, D, _ = pool.shape
    if q.ndim != 4 or not 1 <= q.shape[1] <= 16:
        raise ValueError(
            f"q has shape {tuple(q.shape)}, not [batch_size, draft_tokens, heads, head_size], 1 to 16 tokens"
        )
    B, T, key_heads, _ = q.shape
    if key_heads == 0 or H == 0 or H % key_heads:
        raise ValueError(f"{key_heads} query and key heads do not divide {H} value heads")
    for name, x, heads in (("q", q, key_heads), ("k", k, key_heads), ("v", v, H), ("output", output, H)):
        require(name, x, pool, (torch.bfloat16,), (B, T, heads, D))
    require_gates(pool, A_log, a, dt_bias, b, (B, T))
    for name, x, shape in (("initial_slots", initial_slots, (B,)), ("accepted", accepted, (B,)),
                           ("state_slots", state_slots, (B, T))):  # fmt: skip
        require(name, x, pool, (torch.int32,), shape)
    if DEBUG:
        check_values(initial_slots.tolist(), state_slots.tolist(), accepted.tolist(), num_slots)
    if B == 0:
        return
    BK = triton.next_power_of_2(D)
    BV = BK if INTERPRETED else max(1, 4096 // (pool.element_size() * BK))  # 4 KiB a warp
    verify_kernel[(B * H * triton.cdiv(D, BV),)](
        q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, output, num_slots, pool.stride(0),
        D**-0.5 if scale is None else float(scale), float(lower_bound or 0.0),
        T=T, TP=triton.next_power_of_2(T), H=H, GROUP=H // key_heads, D=D,
        GATE="bounded" if lower_bound else "softplus", L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm),
        BK=BK, BV=BV, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


def check_values(initial, states, accepted, num_slots):
    """What the definition asks of slots and counts, once their values are on the host."""
    writers = {}
    for row, (start, slots) in enumerate(zip(initial, states, strict=True)):
        for slot in (start, *slots):
            if not -1 <= slot < num_slots:
                raise ValueError(f"row {row} names slot {slot}; there are {num_slots}")
        if len({slot == -1 for slot in (start, *slots)}) == 2:
            raise ValueError(f"row {row} is skipped by some of its slots and not by others")
        if not 0 <= accepted[row] <= len(slots):
            raise ValueError(f"accepted[{row}] is {accepted[row]}, of {len(slots)} draft tokens")
        for slot in slots:
            if slot != -1 and slot in writers:
                raise ValueError(f"state_slots names slot {slot} twice")
            writers[slot] = row
    for row, start in enumerate(initial):
        if start != -1 and writers.get(start, row) != row:
            raise ValueError(f"row {row} reads slot {start}, which another row writes")
