"""The gradients of all that stands between the projections and the rule: convolution, SiLU, L2 norms of q and k, gates.

A walk has the channels of one head, so the sums of a norm's gradient stay within a warp. With n = y rstd,
rstd = (|y|^2 + 1e-6)^-1/2, the head y after SiLU gets   dy = rstd (dn - n (n . dn))   before it is as in conv1d.py.
"""

import torch
import triton
import triton.language as tl
from checks import DEBUG, FLOATS, check_bounds, require, require_dimensions
from gates import gates_backward
from sums import add_parts
from walk import BITS, blocking, walk, walk_from_state

LARGEST = 256  # elements of a head
REGISTERS = 128  # of a thread at most, so that 16 warps fit on a multiprocessor instead of 12


@triton.jit
def gradient_of(head, dq_ptr, dk_ptr, HK: tl.constexpr):
    """Where the gradient of a query or key head is."""
    to = dq_ptr
    if head >= HK:
        to = dk_ptr
    return to


# Compiled for one sequence, where all would be constants, Triton 3.6 fails.
@triton.jit(do_not_specialize=["num_seqs"])
def tokens_kernel(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, dq_ptr, dq_row, dk_ptr, dk_row, dv_ptr, dv_row,
    dht_ptr, dx_ptr, parts_ptr, num_seqs, total, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DHT: tl.constexpr, BT: tl.constexpr, AT_ONCE: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    HEADS: tl.constexpr = 2 * HK + H
    head, block = tl.program_id(0) % HEADS, (tl.program_id(0) // HEADS).to(tl.int64)
    d = tl.arange(0, BC)
    c, d_in, C = head * D + d, d < D, HEADS * D
    if head < 2 * HK:
        walk(
            x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr,
            gradient_of(head, dq_ptr, dk_ptr, HK), tl.where(head < HK, dq_row, dk_row), dht_ptr, dx_ptr, parts_ptr,
            num_seqs, total, C, block, c, head % HK * D + d, d_in,
            W, HAS_BIAS, HAS_STATE, True, HAS_DHT, True, BT, AT_ONCE, BC,
        )  # fmt: skip
    else:
        walk(
            x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr,
            dv_ptr, dv_row, dht_ptr, dx_ptr, parts_ptr,
            num_seqs, total, C, block, c, (head - 2 * HK) * D + d, d_in,
            W, HAS_BIAS, HAS_STATE, True, HAS_DHT, False, BT, AT_ONCE, BC,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_seqs"])
def state_kernel(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, dq_ptr, dq_row, dk_ptr, dk_row, dv_ptr, dv_row,
    dht_ptr, dh0_ptr, num_seqs, total, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DHT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    HEADS: tl.constexpr = 2 * HK + H
    head, n = tl.program_id(0) % HEADS, (tl.program_id(0) // HEADS).to(tl.int64)
    d = tl.arange(0, BC)
    c, d_in, C = head * D + d, d < D, HEADS * D
    if head < 2 * HK:
        walk_from_state(
            x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr,
            gradient_of(head, dq_ptr, dk_ptr, HK), tl.where(head < HK, dq_row, dk_row), dht_ptr, dh0_ptr,
            num_seqs, total, C, n, c, head % HK * D + d, d_in, W, HAS_BIAS, HAS_STATE, True, HAS_DHT, True, BC,
        )  # fmt: skip
    else:
        walk_from_state(
            x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr,
            dv_ptr, dv_row, dht_ptr, dh0_ptr,
            num_seqs, total, C, n, c, (head - 2 * HK) * D + d, d_in, W, HAS_BIAS, HAS_STATE, True, HAS_DHT, False, BC,
        )  # fmt: skip


def conv_gates_backward(
    x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, initial_state, dq, dk, dv, dg, dbeta, dht,
    dx, dconv_weight, dconv_bias, da, db, dA_log, ddt_bias, dh0,
):  # fmt: skip
    """gdn_conv_gates_backward: x, dx [tokens, C], C = (2 HK + H) D; conv_weight, dconv_weight [C, W]; conv_bias,
    dconv_bias [C]; a, b, dg, dbeta, da, db [tokens, H]; A_log, dt_bias, dA_log, ddt_bias [H]; dq, dk [tokens, HK, D];
    dv [tokens, H, D]; initial_state, dht, dh0 [num_seqs, C, W - 1]. Rows of tokens that are given stand apart as they
    like. Gradients of parameters and states are float32, and so are dg and dbeta."""
    require_dimensions(2, x=x, conv_weight=conv_weight, a=a)
    require_dimensions(3, dq=dq, dv=dv)
    require_dimensions(1, cu_seqlens=cu_seqlens)
    (total, C), W, N = x.shape, conv_weight.shape[1], cu_seqlens.numel() - 1
    (_, HK, D), H = dq.shape, dv.shape[1]
    if N < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    if W < 1:
        raise ValueError("conv_weight has no taps")
    if C != (2 * HK + H) * D or not 0 < D <= LARGEST or not HK:
        raise ValueError(f"{C} channels are not q and k of {HK} heads and v of {H}, of 1 to {LARGEST} elements: {D}")
    states, f32 = (N, C, W - 1), (torch.float32,)
    for name, y, shape, dtypes in (
        ("x", x, (total, C), FLOATS), ("a", a, (total, H), FLOATS), ("b", b, (total, H), FLOATS),
        ("dq", dq, (total, HK, D), FLOATS), ("dk", dk, (total, HK, D), (dq.dtype,)), ("dv", dv, (total, H, D), FLOATS),
        ("dg", dg, (total, H), f32), ("dbeta", dbeta, (total, H), f32),
    ):  # fmt: skip
        require(name, y, shape, x, dtypes, rows=True)
        if total and not y[0].is_contiguous():
            raise ValueError(f"{name} must have no gaps within a row; its strides are {y.stride()}")
    require("dx", dx, (total, C), x, (x.dtype,))
    require("cu_seqlens", cu_seqlens, (N + 1,), x, (torch.int64, torch.int32))
    for name, y, shape, dtypes in (
        ("conv_weight", conv_weight, (C, W), FLOATS), ("conv_bias", conv_bias, (C,), FLOATS),
        ("A_log", A_log, (H,), FLOATS), ("dt_bias", dt_bias, (H,), FLOATS),
        ("initial_state", initial_state, states, FLOATS),
        ("dht", dht, states, f32),
        ("dconv_weight", dconv_weight, (C, W), f32), ("dconv_bias", dconv_bias, (C,), f32),
        ("da", da, (total, H), (a.dtype,)), ("db", db, (total, H), (b.dtype,)), ("dA_log", dA_log, (H,), f32),
        ("ddt_bias", ddt_bias, (H,), f32), ("dh0", dh0, states, f32),
    ):  # fmt: skip
        require(name, y, shape, x, dtypes)
    if DEBUG:
        check_bounds(cu_seqlens, total)
    BT, AT_ONCE, _ = blocking(total, C)
    blocks, heads, BC = triton.cdiv(total, BT), 2 * HK + H, triton.next_power_of_2(D)
    sizes = {"HK": HK, "H": H, "D": D, "W": W, "BC": BC, "num_warps": max(1, BC // 128)} | BITS
    has = {"HAS_BIAS": conv_bias is not None, "HAS_STATE": initial_state is not None, "HAS_DHT": dht is not None}
    gradients = [z for y in (dq, dk, dv) for z in (y, y.stride(0))]
    given = (x, x.stride(0), conv_weight, conv_bias, cu_seqlens, initial_state, *gradients, dht)
    parts = dconv_weight.new_empty((blocks, W + 1, C))
    limit = {} if torch.version.hip else {"maxnreg": REGISTERS}
    if blocks:
        tokens_kernel[(blocks * heads,)](*given, dx, parts, N, total, **sizes, **has, BT=BT, AT_ONCE=AT_ONCE, **limit)
    if W > 1:
        state_kernel[(N * heads,)](*given, dh0, N, total, **sizes, **has)
    add_parts(parts, dconv_weight, dconv_bias)
    gates_backward(a, b, A_log, dt_bias, cu_seqlens, dg, dbeta, da, db, dA_log, ddt_bias)
