"""Kimi Delta Attention for one token of every sequence of a batch: dense states, packed rows and pools, states [V, K].

A program owns BV value channels of one head of one row, for all key channels, in registers. Value channels never mix,
so programs share nothing. Both sums over key channels are taken of the state as it was read: with k' = alpha * k and q'
= alpha * q they are S k' and S q', and the read-out after the write is S q' + u (k . q). Arithmetic is float32; what is
written is rounded once.
"""

import os

import torch
import triton
import triton.language as tl
from arguments import require
from gates import log2_decay

DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, from_ptr, to_ptr, read_ptr, write_ptr, A_log_ptr, a_ptr, dt_bias_ptr, b_ptr, output_ptr,
    num_slots, slot_stride, scale, lower_bound,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, QK_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr,
    GATE: tl.constexpr, L2_NORM: tl.constexpr, POOL: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks: tl.constexpr = (D + BV - 1) // BV
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    h, n = row % H, (row // H).to(tl.int64)
    i = block * BV + tl.arange(0, BV)
    j = tl.arange(0, BK)
    i_in, j_in = i < D, j < D
    output_at = output_ptr + (n * H + h) * D + i
    source, target = n, n
    if POOL:
        source, target = tl.load(read_ptr + n).to(tl.int64), tl.load(write_ptr + n).to(tl.int64)
        if (tl.minimum(source, target) < 0) | (tl.maximum(source, target) >= num_slots):  # -1, or none: never followed
            tl.store(output_at, tl.zeros([BV], dtype=output_ptr.dtype.element_ty), mask=i_in)
            return

    stride = tl.cast(slot_stride, tl.int64)  # states outgrow 32 bits
    part = h * (D * D) + i[:, None] * D + j[None, :]
    inside = i_in[:, None] & j_in[None, :]
    S = tl.load(from_ptr + source * stride + part, mask=inside, other=0.0).to(tl.float32)  # [BV, BK]
    q = tl.load(q_ptr + n * QK_STRIDE + h // GROUP * D + j, mask=j_in, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + n * QK_STRIDE + h // GROUP * D + j, mask=j_in, other=0.0).to(tl.float32)
    v = tl.load(v_ptr + n * V_STRIDE + h * D + i, mask=i_in, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + (n * H + h) * D + j, mask=j_in, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias_ptr + h * D + j, mask=j_in, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(A_log_ptr + h).to(tl.float32))
    alpha = tl.exp2(log2_decay(a, bias, rate, lower_bound, GATE))
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + n * H + h).to(tl.float32)))
    if L2_NORM:
        q = q / tl.sqrt(tl.sum(q * q, axis=0) + 1e-6)
        k = k / tl.sqrt(tl.sum(k * k, axis=0) + 1e-6)
    S *= alpha[None, :]
    u = beta * (v - tl.sum(S * k[None, :], axis=1))
    o = scale * (tl.sum(S * q[None, :], axis=1) + u * tl.sum(q * k, axis=0))
    S += u[:, None] * k[None, :]
    tl.store(output_at, o.to(output_ptr.dtype.element_ty), mask=i_in)
    tl.store(to_ptr + target * stride + part, S.to(to_ptr.dtype.element_ty), mask=inside)


def launch(
    q, k, v, state, new_state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, key_heads,
    qk_stride, v_stride, slots=(None, None),
):  # fmt: skip
    _, H, D, _ = state.shape
    rows = q.shape[0]
    if rows == 0 or H == 0:
        return
    BK = triton.next_power_of_2(D)
    BV = triton.next_power_of_2(D) if INTERPRETED else max(1, 4096 // (state.element_size() * BK))  # 4 KiB a warp
    decode_kernel[(rows * H * triton.cdiv(D, BV),)](
        q, k, v, state, new_state, *slots, A_log, a, dt_bias, b, output, state.shape[0], state.stride(0),
        D**-0.5 if scale is None else float(scale), 0.0 if lower_bound is None else float(lower_bound),
        H=H, GROUP=H // key_heads, D=D, QK_STRIDE=qk_stride, V_STRIDE=v_stride,
        GATE="bounded" if lower_bound else "softplus", L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm),
        POOL=slots[0] is not None, BK=BK, BV=BV, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


def require_state(name, x):
    if x.ndim != 4 or x.shape[2] != x.shape[3]:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not [.., heads, head_size, head_size]")
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"{name} is {x.dtype}, neither float32 nor bfloat16")
    if not 1 <= x.shape[3] <= 256:
        raise ValueError(f"head_size {x.shape[3]} is not served: 1 to 256 are")


def require_pool(pool):
    require_state("pool", pool)
    num_slots, H, D, _ = pool.shape
    if not pool[:1].is_contiguous() or (num_slots > 1 and pool.stride(0) < H * D * D):
        raise ValueError(f"pool must be contiguous but for its first dimension; its strides are {pool.stride()}")


def require_gates(like, A_log, a, dt_bias, b, lead):
    _, H, D, _ = like.shape
    f32, bf16 = (torch.float32,), (torch.bfloat16,)
    require("A_log", A_log, like, f32, (H,))
    require("dt_bias", dt_bias, like, f32, (H, D))
    require("a", a, like, bf16, (*lead, H, D))
    require("b", b, like, bf16, (*lead, H))


def require_tokens(like, q, k, v, output, B):
    """The heads of q and k, and the elements from one row of q and k, and of v, to the next."""
    _, H, D, _ = like.shape
    if q.ndim != 4:
        raise ValueError(f"q has {q.ndim} dimensions, not 4")
    key_heads, bf16 = q.shape[2], (torch.bfloat16,)
    if key_heads == 0 or H % key_heads:
        raise ValueError(f"{key_heads} query and key heads do not divide {H} value heads")
    for name, x, heads in (("q", q, key_heads), ("k", k, key_heads), ("v", v, H), ("output", output, H)):
        require(name, x, like, bf16, (B, 1, heads, D))
    return key_heads, key_heads * D, H * D


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, new_state):
    """kda_decode_k_last: state [batch_size, H, V, K], float32 or bfloat16."""
    require_state("state", state)
    B, H, D, _ = state.shape
    rows = require_tokens(state, q, k, v, output, B)
    require_gates(state, A_log, a, dt_bias, b, (B, 1))
    for name, x in (("state", state), ("new_state", new_state)):
        require(name, x, state, (state.dtype,), (B, H, D, D))
    launch(q, k, v, state, new_state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, *rows)


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, new_state):
    """kda_decode_packed_k_last: a row of mixed_qkv holds the heads of q, of k and of v."""
    require_state("state", state)
    B, H, D, _ = state.shape
    length = mixed_qkv.shape[-1]
    key_heads = (length - H * D) // (2 * D)
    if key_heads <= 0 or H % key_heads or (2 * key_heads + H) * D != length:
        raise ValueError(f"a row of mixed_qkv has {length} elements: {H} value heads leave no whole q and k")
    require("mixed_qkv", mixed_qkv, state, (torch.bfloat16,), (B, length))
    require("output", output, state, (torch.bfloat16,), (B, H, D))
    require_gates(state, A_log, a, dt_bias, b, (B,))
    for name, x in (("state", state), ("new_state", new_state)):
        require(name, x, state, (state.dtype,), (B, H, D, D))
    q, k, v = mixed_qkv, mixed_qkv[:, key_heads * D :], mixed_qkv[:, 2 * key_heads * D :]
    launch(
        q, k, v, state, new_state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, key_heads, length,
        length,
    )  # fmt: skip


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output
):  # fmt: skip
    """kda_decode_pool_k_last: pool [num_slots, H, V, K], float32 or bfloat16."""
    require_pool(pool)
    num_slots, B = pool.shape[0], q.shape[0]
    rows = require_tokens(pool, q, k, v, output, B)
    require_gates(pool, A_log, a, dt_bias, b, (B, 1))
    for name, x in (("read_slots", read_slots), ("write_slots", write_slots)):
        require(name, x, pool, (torch.int32,), (B,))
    if DEBUG:
        check_slots(read_slots.tolist(), write_slots.tolist(), num_slots)
    launch(
        q, k, v, pool, pool, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, output, *rows,
        (read_slots, write_slots),
    )  # fmt: skip


def check_slots(read, write, num_slots):
    """What the definition asks of slots, once their values are on the host."""
    writers = {}
    for row, (source, target) in enumerate(zip(read, write, strict=True)):
        for name, slot in (("read_slots", source), ("write_slots", target)):
            if not -1 <= slot < num_slots:
                raise ValueError(f"{name}[{row}] names slot {slot}; there are {num_slots}")
        if (source == -1) != (target == -1):
            raise ValueError(f"row {row} is skipped by one of its slots and not by the other")
        if target in writers:
            raise ValueError(f"write_slots names slot {target} twice")
        if target != -1:
            writers[target] = row
    for row, source in enumerate(read):
        if writers.get(source, row) != row:
            raise ValueError(f"row {row} reads slot {source}, which another row writes")
