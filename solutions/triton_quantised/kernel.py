"""The gated delta rule on quantised states: decode and verify on a pool of codes, one scale for each value row.

A program owns BV value rows of one head of one row of the batch: their codes, for all key channels, and their scales.
It makes numbers of them once, keeps those in registers from its first token to its last, and makes codes of them again
wherever a state is stored. Value rows never mix, so programs share nothing, and a row's largest magnitude is at hand
where its scale is renewed.

Both sums over key channels, S k and S q, are taken of the state as it was before the token, in one reduction. The
read-out after the write follows from them: S' q = alpha S q + u (k . q). Arithmetic is float32.
"""

import os
from functools import cache

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
LINE = 128  # codes that lanes read side by side, 16 each


def blocking(K: int, V: int) -> tuple[int, int]:
    """(BV, num_warps) for states of V x K: the one place to tune."""
    if INTERPRETED:
        return triton.next_power_of_2(V), 1  # it charges by the program
    return max(1, 2048 // triton.next_power_of_2(K)), 1  # 2 KiB of codes a warp: 64 numbers a thread


@cache
def may_start_early(device: torch.device) -> bool:
    """Whether a launch may begin before the one ahead of it has ended (programmatic dependent launch)."""
    return not INTERPRETED and (device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0))


# --- the kernel -------------------------------------------------------------------------------------------------


@triton.jit
def softplus(x):
    # max(x, 0) + log1p(y), y = exp(-|x|) in (0, 1]. There is no log1p here, and log(1 + y) loses a small y;
    # log1p(y) = 2 atanh(y / (2 + y)) does not. Its argument is at most 1/3: eight terms give float32.
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 9.0 + s2 * (1.0 / 11.0 + s2 * series)
    series = 1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 * series)
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * series))


@triton.jit
def sum_of_keys(x):
    """[.., KC, KI] -> [..]"""
    return tl.sum(tl.sum(x, axis=2), axis=1)


@triton.jit
def pick(values, chosen):
    """The one element that is chosen, as a scalar."""
    return tl.sum(tl.where(chosen, values, 0), axis=0)


@triton.jit
def to_codes(S, LARGEST: tl.constexpr, TINY: tl.constexpr):
    """S [BV, KC, KI] -> what is rounded to codes, and the scales [BV] of its rows."""
    magnitude = tl.max(tl.max(tl.abs(S), axis=2), axis=1)
    nothing = magnitude < TINY
    # Divisions as IEEE has them: an approximate one would break ties between two codes at random.
    scales = tl.where(nothing, 0.0, tl.math.div_rn(magnitude, tl.full(magnitude.shape, LARGEST, tl.float32)))
    divisor = tl.where(nothing, 1.0, magnitude)
    factor = tl.where(nothing, 0.0, tl.math.div_rn(tl.full(magnitude.shape, LARGEST, tl.float32), divisor))
    x = S * factor[:, None, None]
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST), scales


@triton.jit
def quantised_kernel(
    q_ptr, k_ptr, v_ptr, pool_ptr, scales_ptr, read_ptr, write_ptr, accepted_ptr, A_log_ptr, a_ptr, dt_bias_ptr, b_ptr,
    output_ptr, num_slots, slot_stride, scales_stride, scale,
    T: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    L2_NORM: tl.constexpr, VERIFY: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr, TINY: tl.constexpr,
    TP: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KI: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()  # started before the kernel ahead had ended: what that one wrote is here from now on
    # A grid of one dimension: the others end at 65,535.
    program = tl.program_id(0)
    blocks = tl.cdiv(V, BV)
    block, row = program % blocks, program // blocks
    h, n = row % H, (row // H).to(tl.int64)

    # S [BV, BK / KI, KI]: KI key channels are a line, so that a row is summed in a thread first, then over few lanes.
    KC: tl.constexpr = BK // KI
    i = block * BV + tl.arange(0, BV)
    j = (tl.arange(0, KC) * KI)[None, :, None] + tl.arange(0, KI)[None, None, :]
    i_in = i < V
    j_in = j < K
    inside = i_in[:, None, None] & j_in
    part = h * (K * V) + i[:, None, None] * K + j
    row_at = h * V + i

    token = n * T
    t_all = tl.arange(0, TP)
    t_in = t_all < T
    o_at = output_ptr + (token * H + h) * V + i
    stride, s_stride = tl.cast(slot_stride, tl.int64), tl.cast(scales_stride, tl.int64)  # pools outgrow 32 bits
    first = tl.load(read_ptr + n)
    slots = tl.load(write_ptr + token + t_all, mask=t_in, other=0)
    low, high = tl.minimum(first, tl.min(slots, axis=0)), tl.maximum(first, tl.max(slots, axis=0))
    live = (low >= 0) & (high < num_slots)
    if VERIFY:
        accepted = tl.load(accepted_ptr + n)
        live = live & (accepted >= 0) & (accepted <= T)
        first = tl.where(accepted == 0, first, pick(slots, t_all == accepted - 1))
    if not live:  # -1, or a slot that is none: never followed
        for t in range(T):
            tl.store(o_at + t * (H * V), tl.zeros([BV], dtype=output_ptr.dtype.element_ty), mask=i_in)
        return
    slot = first.to(tl.int64)

    # Gates of all tokens, [TP].
    gate_at = (token + t_all) * H + h
    a_all = tl.load(a_ptr + gate_at, mask=t_in, other=0.0).to(tl.float32)
    b_all = tl.load(b_ptr + gate_at, mask=t_in, other=0.0).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + h).to(tl.float32)
    rate = tl.exp(tl.load(A_log_ptr + h).to(tl.float32))

    # The first token's vectors; later ones are asked for a token ahead.
    qk_at = (token * (H // GROUP) + h // GROUP) * K + j
    q_at, k_at = q_ptr + qk_at, k_ptr + qk_at
    v_at = v_ptr + (token * H + h) * V + i
    q_next = tl.load(q_at, mask=j_in, other=0.0)  # [1, KC, KI]
    k_next = tl.load(k_at, mask=j_in, other=0.0)
    v_next = tl.load(v_at, mask=i_in, other=0.0)
    row_scale = tl.load(scales_ptr + slot * s_stride + row_at, mask=i_in, other=0.0)

    # Last, because Triton gives the layout of the last load to whatever meets several: S is never rearranged.
    codes = tl.load(pool_ptr + slot * stride + part, mask=inside, other=0.0)
    # No load sinks below this.
    tl.debug_barrier()
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # once loads are on their way

    S = codes.to(tl.float32) * row_scale[:, None, None]
    alphas = tl.exp(-rate * softplus(a_all + dt_bias))
    betas = 1.0 / (1.0 + tl.exp(-b_all))
    for t in range(T):
        q, k, v = q_next.to(tl.float32), k_next.to(tl.float32), v_next.to(tl.float32)
        if T > 1:
            ahead = tl.minimum(t + 1, T - 1)
            q_next = tl.load(q_at + ahead * (H // GROUP * K), mask=j_in, other=0.0)
            k_next = tl.load(k_at + ahead * (H // GROUP * K), mask=j_in, other=0.0)
            v_next = tl.load(v_at + ahead * (H * V), mask=i_in, other=0.0)
        alpha = pick(alphas, t_all == t)
        beta = pick(betas, t_all == t)
        qq, kk, qk = sum_of_keys(q * q), sum_of_keys(k * k), sum_of_keys(q * k)  # [1]
        q_factor, k_factor = 1.0, 1.0
        if L2_NORM:
            q_factor = 1.0 / tl.sqrt(qq + 1e-6)
            k_factor = 1.0 / tl.sqrt(kk + 1e-6)
        sums = tl.join(tl.sum(S * k, axis=1), tl.sum(S * q, axis=1))  # [BV, KI, 2]
        held, seen = tl.split(tl.sum(sums, axis=1))  # S k, S q
        # Which product of a sum is rounded is written out: the compiler's choice is not the same in every register.
        u = beta * tl.fma(-alpha, held * k_factor, v)  # the error, of the decayed state
        o = scale * tl.fma(u, qk * q_factor * k_factor, alpha * (seen * q_factor))  # after the write
        S = tl.fma((u * k_factor)[:, None, None], k, alpha * S)

        tl.store(o_at + t * (H * V), o.to(output_ptr.dtype.element_ty), mask=i_in)
        slot = tl.load(write_ptr + token + t).to(tl.int64)
        x, renewed = to_codes(S, LARGEST, TINY)
        if WHOLE:
            x = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest whole number, ties to even
        tl.store(pool_ptr + slot * stride + part, x.to(pool_ptr.dtype.element_ty), mask=inside)
        tl.store(scales_ptr + slot * s_stride + row_at, renewed, mask=i_in)


# --- the host ---------------------------------------------------------------------------------------------------


def require(device: torch.device, dtype: torch.dtype, **tensors: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    for name, (x, shape) in tensors.items():
        if x.dtype != dtype:
            raise ValueError(f"{name} is {x.dtype}, not {dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, not on {device}")


def require_pools(pool: torch.Tensor, pool_scales: torch.Tensor) -> None:
    if pool.dtype not in LARGEST:
        raise ValueError(f"pool is {pool.dtype}, neither float8_e4m3fn nor int8")
    if pool.ndim != 4 or pool.shape[2] != pool.shape[3]:
        raise ValueError(f"pool has shape {tuple(pool.shape)}, not [num_slots, heads, head_size, head_size]")
    if pool.shape[2] > 256:
        raise ValueError(f"head_size {pool.shape[2]} is not served: up to 256 is")
    if pool_scales.dtype != torch.float32 or pool_scales.shape != pool.shape[:3]:
        found = f"{pool_scales.dtype} {tuple(pool_scales.shape)}"
        raise ValueError(f"pool_scales is {found}, not float32 {tuple(pool.shape[:3])}")
    for name, x in (("pool", pool), ("pool_scales", pool_scales)):
        if not x[:1].is_contiguous() or (len(x) > 1 and x.stride(0) < x[0].numel()):
            raise ValueError(f"{name} must be contiguous but for its first dimension; its strides are {x.stride()}")
        if x.device != pool.device:
            raise ValueError(f"{name} is on {x.device}, not on {pool.device}")


def in_pool(q, k, v, pool, pool_scales, read_slots, write_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm,
            output, names):  # fmt: skip
    """T tokens a row: the state comes from one slot and goes, after token t, to write_slots[.., t]."""
    require_pools(pool, pool_scales)
    if q.ndim != 4:
        raise ValueError(f"q has {q.ndim} dimensions, not 4")
    (B, T, key_heads), (num_slots, H, V, K) = q.shape[:3], pool.shape
    if key_heads <= 0 or H % key_heads:
        raise ValueError(f"num_q_heads {key_heads} does not divide num_v_heads {H}")
    if not 1 <= T <= 16 or (accepted is None and T != 1):
        raise ValueError(f"{T} tokens a row are not served: {'1 is' if accepted is None else '1 to 16 are'}")
    qk, vo, gate = (B, T, key_heads, K), (B, T, H, V), (B, T, H)
    device, bf16 = pool.device, torch.bfloat16
    require(device, bf16, q=(q, qk), k=(k, qk), v=(v, vo), output=(output, vo))
    require(device, bf16, a=(a, gate), b=(b, gate), dt_bias=(dt_bias, (H,)))
    require(device, torch.float32, A_log=(A_log, (H,)))
    written = (B,) if accepted is None else (B, T)
    require(device, torch.int32, **{names[0]: (read_slots, (B,)), names[1]: (write_slots, written)})
    if accepted is not None:
        require(device, torch.int32, accepted=(accepted, (B,)))
    if B == 0:
        return
    BV, num_warps = blocking(K, V)
    BK, early = triton.next_power_of_2(K), may_start_early(device)
    quantised_kernel[(B * H * triton.cdiv(V, BV),)](
        q, k, v, pool, pool_scales, read_slots, write_slots, accepted, A_log, a, dt_bias, b,
        output, num_slots, pool.stride(0), pool_scales.stride(0), K**-0.5 if scale is None else float(scale),
        T=T, H=H, GROUP=H // key_heads, K=K, V=V,
        L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm), VERIFY=accepted is not None,
        LARGEST=LARGEST[pool.dtype], WHOLE=pool.dtype == torch.int8, TINY=2.0**-100,
        TP=triton.next_power_of_2(T), BK=BK, BV=BV, KI=min(BK, LINE), EARLY=early,
        num_warps=num_warps, enable_fp_fusion=False, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip


def decode_pool_k_last(
    q, k, v, pool, pool_scales, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, output
):  # fmt: skip
    """pool [num_slots, H, V, K], float8_e4m3fn or int8, and pool_scales [num_slots, H, V]: both updated in place."""
    in_pool(q, k, v, pool, pool_scales, read_slots, write_slots, None, A_log, a, dt_bias, b, scale, use_qk_l2norm,
            output, names=("read_slots", "write_slots"))  # fmt: skip


def verify_k_last(
    q, k, v, pool, pool_scales, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output
):  # fmt: skip
    """q, k, v, a and b hold T tokens a row, whose states are quantised into T slots."""
    in_pool(q, k, v, pool, pool_scales, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale,
            use_qk_l2norm, output, names=("initial_slots", "state_slots"))  # fmt: skip
