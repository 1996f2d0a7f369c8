"""The whole layer, from hidden states to hidden states: projections, convolution, gates, rule, norm, projection.

What goes from one kernel to the next is float32, so nothing is rounded on the way but operands of products. A prefill
runs the rule in chunks (from_conv.py), a decode token by token: one program holds some value channels of one head's
state, and takes norms and gates along.
"""

import torch
import triton
import triton.language as tl
from checks import (
    DEBUG,
    INTERPRETED,
    check_bounds,
    check_slots,
    require,
    require_dimensions,
    require_pool,
)
from conv1d import check_state, conv1d_decode, conv1d_prefill
from from_conv import LARGEST, prefill_from_conv
from gated_norm import gated_rms_norm


@triton.jit
def linear_kernel(
    x_ptr, weight_ptr, out_ptr, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    across = tl.cdiv(N, BN)
    m = (tl.program_id(0) // across).to(tl.int64) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % across).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for first in range(0, K, BK):
        k_in = first + k < K
        x = tl.load(x_ptr + m[:, None] * K + first + k[None, :], mask=(m < M)[:, None] & k_in[None, :], other=0.0)
        w_at = weight_ptr + n[None, :] * K + first + k[:, None]
        w = tl.load(w_at, mask=(n < N)[None, :] & k_in[:, None], other=0.0)
        total = tl.dot(x.to(tl.bfloat16), w.to(tl.bfloat16), acc=total)
    at = m[:, None] * N + n[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def softplus(x):
    # max(x, 0) + log1p(y), y = exp(-|x|) in (0, 1]: log1p(y) = 2 atanh(y / (2 + y)), which loses no small y.
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 9.0 + s2 * (1.0 / 11.0 + s2 * series)
    series = 1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 * series)
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * series))


@triton.jit
def gates(a, b, A_log, dt_bias, DOUBLED: tl.constexpr = False):
    """alpha and beta."""
    return tl.exp(-tl.exp(A_log) * softplus(a + dt_bias)), (2.0 if DOUBLED else 1.0) / (1.0 + tl.exp(-b))


@triton.jit
def gate_kernel(
    a_ptr, b_ptr, A_log_ptr, dt_bias_ptr, count, H: tl.constexpr, DOUBLED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """alpha in the place of a, beta in that of b."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(a_ptr + at, mask=inside, other=0.0)
    b = tl.load(b_ptr + at, mask=inside, other=0.0)
    A_log = tl.load(A_log_ptr + at % H, mask=inside, other=0.0).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + at % H, mask=inside, other=0.0).to(tl.float32)
    alpha, beta = gates(a, b, A_log, dt_bias, DOUBLED)
    tl.store(a_ptr + at, alpha, mask=inside)
    tl.store(b_ptr + at, beta, mask=inside)


@triton.jit
def step_kernel(
    qkv_ptr, a_ptr, b_ptr, A_log_ptr, dt_bias_ptr, pool_ptr, slots_ptr, output_ptr, num_slots, slot_stride,
    HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SCALE: tl.constexpr,
    K_LAST: tl.constexpr, DOUBLED: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (V + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, (pair // H).to(tl.int64)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    j_in, i_in = j < K, i < V
    slot = tl.load(slots_ptr + n).to(tl.int64)
    o_at = output_ptr + (n * H + h) * V + i
    if (slot < 0) | (slot >= num_slots):  # -1, or a slot that is none: never followed
        tl.store(o_at, tl.zeros([BV], dtype=tl.float32), mask=i_in)
        return
    row = qkv_ptr + n * (2 * HK * K + H * V)
    q = tl.load(row + h // (H // HK) * K + j, mask=j_in, other=0.0)
    k = tl.load(row + HK * K + h // (H // HK) * K + j, mask=j_in, other=0.0)
    v = tl.load(row + 2 * HK * K + h * V + i, mask=i_in, other=0.0)
    across, down = (1, K) if K_LAST else (V, 1)  # from one key channel to the next, and one value channel
    state_at = pool_ptr + slot * slot_stride + h * (K * V) + j[:, None] * across + i[None, :] * down
    inside = j_in[:, None] & i_in[None, :]
    S = tl.load(state_at, mask=inside, other=0.0).to(tl.float32)  # [BK, BV]
    alpha, beta = gates(
        tl.load(a_ptr + n * H + h).to(tl.float32), tl.load(b_ptr + n * H + h).to(tl.float32),
        tl.load(A_log_ptr + h).to(tl.float32), tl.load(dt_bias_ptr + h).to(tl.float32), DOUBLED,
    )  # fmt: skip
    q = q * (SCALE / tl.sqrt(tl.sum(q * q, axis=0) + 1e-6))
    k = k / tl.sqrt(tl.sum(k * k, axis=0) + 1e-6)
    S = alpha * S
    u = beta * (v - tl.sum(S * k[:, None], axis=0))  # the error, of the decayed state
    S += k[:, None] * u[None, :]
    tl.store(o_at, tl.sum(S * q[:, None], axis=0), mask=i_in)
    tl.store(state_at, S.to(pool_ptr.dtype.element_ty), mask=inside)


# --- the host -------------------------------------------------------------------------------------------------------


def linear(x, weight, out=None):
    """x weight^T, float32 where no `out` says otherwise."""
    (M, K), N = x.shape, len(weight)
    out = x.new_empty((M, N), dtype=torch.float32) if out is None else out
    if M and N:
        few = max(16, triton.next_power_of_2(min(M, 64)))
        BM, BN, BK = (few, max(16, triton.next_power_of_2(N)), 128) if INTERPRETED else (few, 64, 64)
        grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
        linear_kernel[grid](x, weight, out, M, N, K=K, BM=BM, BN=BN, BK=BK, num_warps=4)
    return out


def key_heads(what, C, H, K, V):
    """Of C channels of q, k and v, which `what` words."""
    if not (0 < K <= LARGEST and 0 < V <= LARGEST):
        raise ValueError(f"heads of {K} and {V} elements are not served: 1 to {LARGEST} are")
    HK, rest = divmod(C - H * V, 2 * K)
    if rest or HK <= 0 or H % HK:
        raise ValueError(f"{what.format(C)}, which are not q, k and v of {H} value heads of {V}, keys of {K}")
    return HK


def check_pools(conv_weight, conv_bias, C, conv_states, conv_slots, recurrent_states, shape, state_slots, rows, device):
    """Both pools, and what the convolution takes. Of what kernels on the way would refuse nothing is left to them: half
    of a call is none."""
    require_pool(recurrent_states, "recurrent_states", shape, device)
    require(device, torch.int32, conv_slots=(conv_slots, (rows,)), state_slots=(state_slots, (rows,)))
    channels, _ = check_state(conv_weight, conv_bias, conv_states, conv_slots, rows, device)
    if channels != C:
        raise ValueError(f"conv_weight has {channels} channels, there are {C}")
    require(device, torch.bfloat16, conv_states=(conv_states[:1], (min(1, len(conv_states)), *conv_states.shape[1:])))
    if DEBUG:
        check_slots(state_slots, len(recurrent_states))


def check(x, weights, conv_states, conv_slots, recurrent_states, state_slots, output, rows):
    """The sizes of a call, once its projections, pools and heads fit together."""
    require_dimensions(2, x=x, qkv_weight=weights["qkv_weight"])
    require_dimensions(4, recurrent_states=recurrent_states)
    T, hidden = x.shape
    H, K, V = recurrent_states.shape[1:]
    C = len(weights["qkv_weight"])
    HK = key_heads("qkv_weight has {} rows", C, H, K, V)
    shapes = {
        "qkv_weight": (C, hidden), "z_weight": (H * V, hidden), "a_weight": (H, hidden), "b_weight": (H, hidden),
        "norm_weight": (V,), "out_weight": (hidden, H * V), "dt_bias": (H,),
    }  # fmt: skip
    require(x.device, torch.bfloat16, x=(x, (T, hidden)), output=(output, (T, hidden)))
    require(x.device, torch.bfloat16, **{name: (weights[name], shape) for name, shape in shapes.items()})
    require(x.device, torch.float32, A_log=(weights["A_log"], (H,)))
    conv_weight, shape = weights["conv_weight"], (H, K, V)
    check_pools(
        conv_weight, None, C, conv_states, conv_slots, recurrent_states, shape, state_slots, rows, x.device
    )  # fmt: skip
    return T, H, HK, K, V


def projected(x, weights):
    """The rows of q, k and v, z, a and b."""
    return tuple(linear(x, weights[name]) for name in ("qkv_weight", "z_weight", "a_weight", "b_weight"))


def finish(o, z, weights, H, output, eps):
    """Norm, gate and the last projection."""
    normed = torch.empty_like(o)
    heads = (len(o), H, o.shape[1] // H)
    gated_rms_norm(o.view(heads), z.view(heads), weights["norm_weight"], eps, normed.view(heads))
    linear(normed, weights["out_weight"], output)


def layer_prefill(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, output, eps=None, doubled=False,
):  # fmt: skip
    """gdn_layer_prefill; `doubled`: beta = 2 sigmoid."""
    weights = {
        "qkv_weight": qkv_weight, "z_weight": z_weight, "a_weight": a_weight, "b_weight": b_weight, "A_log": A_log,
        "conv_weight": conv_weight, "dt_bias": dt_bias, "norm_weight": norm_weight, "out_weight": out_weight,
    }  # fmt: skip
    require_dimensions(1, cu_seqlens=cu_seqlens)
    rows = len(cu_seqlens) - 1
    if rows < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    T, H, _, _, V = check(x, weights, conv_states, conv_slots, recurrent_states, state_slots, output, rows)
    require(x.device, torch.int64, cu_seqlens=(cu_seqlens, (rows + 1,)))
    require(x.device, torch.bool, has_initial_state=(has_initial_state, (rows,)))
    if DEBUG:
        check_bounds("cu_seqlens", cu_seqlens, T)
    qkv, z, a, b = projected(x, weights)
    mixed = torch.empty_like(qkv)
    conv1d_prefill(qkv, conv_weight, None, cu_seqlens, conv_states, conv_slots, has_initial_state, mixed)
    if T:
        gate_kernel[(triton.cdiv(T * H, 1024),)](a, b, A_log, dt_bias, T * H, H=H, DOUBLED=doubled, BLOCK=1024)
    o = x.new_empty((T, H * V), dtype=torch.float32)
    prefill_from_conv(mixed, a, b, recurrent_states, state_slots, cu_seqlens.int(), o, has_initial_state)
    finish(o, z, weights, H, output, eps)


def layer_decode(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
    conv_slots, recurrent_states, state_slots, output, eps=None, doubled=False,
):  # fmt: skip
    """gdn_layer_decode; `doubled`: beta = 2 sigmoid."""
    weights = {
        "qkv_weight": qkv_weight, "z_weight": z_weight, "a_weight": a_weight, "b_weight": b_weight, "A_log": A_log,
        "conv_weight": conv_weight, "dt_bias": dt_bias, "norm_weight": norm_weight, "out_weight": out_weight,
    }  # fmt: skip
    B, H, HK, K, V = check(x, weights, conv_states, conv_slots, recurrent_states, state_slots, output, len(x))
    if B == 0:
        return
    qkv, z, a, b = projected(x, weights)
    mixed = torch.empty_like(qkv)
    conv1d_decode(qkv, conv_weight, None, conv_states, conv_slots, mixed)
    o = x.new_empty((B, H * V), dtype=torch.float32)
    advance(mixed, a, b, A_log, dt_bias, recurrent_states, state_slots, o, (HK, H, K, V), k_last=False, doubled=doubled)
    finish(o, z, weights, H, output, eps)


def layer_prefill_neg_eigval(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
    conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, eps, output,
):  # fmt: skip
    """gdn_layer_prefill_neg_eigval."""
    layer_prefill(
        x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, cu_seqlens,
        conv_states, conv_slots, recurrent_states, state_slots, has_initial_state, output, eps, doubled=True,
    )  # fmt: skip


def layer_decode_neg_eigval(
    x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
    conv_slots, recurrent_states, state_slots, eps, output,
):  # fmt: skip
    """gdn_layer_decode_neg_eigval."""
    layer_decode(
        x, qkv_weight, z_weight, a_weight, b_weight, conv_weight, A_log, dt_bias, norm_weight, out_weight, conv_states,
        conv_slots, recurrent_states, state_slots, output, eps, doubled=True,
    )  # fmt: skip


def advance(qkv, a, b, A_log, dt_bias, states, slots, o, sizes, k_last, doubled=False):
    """Norms, gates and rule of one token of each row, on the convolution's float32 rows."""
    HK, H, K, V = sizes
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    BV = BV if INTERPRETED else min(BV, 32)
    step_kernel[(len(o) * H * triton.cdiv(V, BV),)](
        qkv, a, b, A_log, dt_bias, states, slots, o, len(states), states.stride(0),
        HK=HK, H=H, K=K, V=V, SCALE=K**-0.5, K_LAST=k_last, DOUBLED=doubled, BK=BK, BV=BV, num_warps=4,
    )  # fmt: skip


def core_decode(
    qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_states, conv_slots, recurrent_states,
    state_slots, output,
):  # fmt: skip
    """gdn_core_decode: states [V, K]; float32 from one kernel to the next."""
    require_dimensions(2, qkv=qkv)
    require_dimensions(4, recurrent_states=recurrent_states)
    B, C = qkv.shape
    H, V, K = recurrent_states.shape[1:]
    HK = key_heads("rows of {} channels", C, H, K, V)
    vectors = {"z": (z, (B, H * V)), "a": (a, (B, H)), "b": (b, (B, H)), "output": (output, (B, H * V))}
    require(qkv.device, torch.bfloat16, qkv=(qkv, (B, C)), **vectors)
    require(qkv.device, torch.bfloat16, dt_bias=(dt_bias, (H,)), norm_weight=(norm_weight, (V,)))
    require(qkv.device, torch.float32, A_log=(A_log, (H,)))
    check_pools(
        conv_weight, conv_bias, C, conv_states, conv_slots, recurrent_states, (H, V, K), state_slots, B, qkv.device
    )  # fmt: skip
    if B == 0:
        return
    mixed, o = qkv.new_empty((B, C), dtype=torch.float32), qkv.new_empty((B, H * V), dtype=torch.float32)
    conv1d_decode(qkv.float(), conv_weight, conv_bias, conv_states, conv_slots, mixed)
    advance(mixed, a, b, A_log, dt_bias, recurrent_states, state_slots, o, (HK, H, K, V), k_last=True)
    heads = (B, H, V)
    gated_rms_norm(o.view(heads), z.view(heads), norm_weight, None, output.view(heads))
