"""The gradients of the causal convolution before the rule, and of its SiLU.

With a sequence's state before its inputs, and i = t - (W - 1) + j the input that token t meets under tap j:

    p[t] = bias + sum_j weight[j] x[i],   dp = do silu'(p)        dweight[j] = sum_t dp[t] x[i],   dbias = sum_t dp[t]
    dx[i] = sum_j weight[j] dp[t], of tokens t in the sequence, and dht where the state afterwards has input i

tokens_kernel has dx, by walks over tokens (walk.py); state_kernel has dh0, the gradients of inputs before a sequence's
first. sums.py adds what walks leave of dweight and dbias.
"""

import torch
import triton
import triton.language as tl
from checks import DEBUG, check_bounds, require, require_dimensions
from sums import add_parts
from walk import BITS, blocking, walk, walk_from_state


# Compiled for one sequence, where all would be constants, Triton 3.6 fails.
@triton.jit(do_not_specialize=["num_seqs"])
def tokens_kernel(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dx_ptr, parts_ptr,
    num_seqs, total, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    BT: tl.constexpr, AT_ONCE: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    across = (C + BC - 1) // BC
    block = (tl.program_id(0) // across).to(tl.int64)
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    walk(
        x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dx_ptr, parts_ptr,
        num_seqs, total, C, block, c, c, c < C, W, HAS_BIAS, HAS_STATE, HAS_DO, HAS_DHT, False, BT, AT_ONCE, BC,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_seqs"])
def state_kernel(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dh0_ptr, num_seqs, total, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    across = (C + BC - 1) // BC
    n = (tl.program_id(0) // across).to(tl.int64)
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    walk_from_state(
        x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dh0_ptr,
        num_seqs, total, C, n, c, c, c < C, W, HAS_BIAS, HAS_STATE, HAS_DO, HAS_DHT, False, BC,
    )  # fmt: skip


def conv1d_backward(x, weight, bias, cu_seqlens, initial_state, do, dht, dx, dweight, dbias, dh0):
    """gdn_conv1d_backward: x, do, dx [tokens, C], rows of x and do apart as they like; weight [C, W], bias [C],
    initial_state, dht, dh0 [num_seqs, C, W - 1]; dweight [C, W], dbias [C]. Parameters and states have float32
    gradients."""
    require_dimensions(2, x=x, weight=weight)
    require_dimensions(1, cu_seqlens=cu_seqlens)
    (total, C), W, N = x.shape, weight.shape[1], cu_seqlens.numel() - 1
    if N < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    if W < 1:
        raise ValueError("weight has no taps")
    states, f32 = (N, C, W - 1), (torch.float32,)
    require("x", x, (total, C), x, rows=True)
    require("do", do, (total, C), x, rows=True)
    require("weight", weight, (C, W), x)
    require("bias", bias, (C,), x)
    require("cu_seqlens", cu_seqlens, (N + 1,), x, (torch.int64, torch.int32))
    require("initial_state", initial_state, states, x)
    require("dx", dx, (total, C), x, (x.dtype,))
    for name, y, shape in (
        ("dht", dht, states),
        ("dweight", dweight, (C, W)),
        ("dbias", dbias, (C,)),
        ("dh0", dh0, states),
    ):
        require(name, y, shape, x, f32)
    if DEBUG:
        check_bounds(cu_seqlens, total)
    BT, AT_ONCE, BC = blocking(total, C)
    blocks, across = triton.cdiv(total, BT), triton.cdiv(C, BC)
    has = {"HAS_BIAS": bias is not None, "HAS_STATE": initial_state is not None, "HAS_DO": do is not None}
    has["HAS_DHT"] = dht is not None
    do_row = 0 if do is None else do.stride(0)
    given = (x, x.stride(0), weight, bias, cu_seqlens, initial_state, do, do_row, dht)
    parts = dweight.new_empty((blocks, W + 1, C))
    if blocks and C:
        tokens_kernel[(blocks * across,)](
            *given, dx, parts, N, total, C, W=W, **has, BT=BT, AT_ONCE=AT_ONCE, BC=BC, num_warps=1, **BITS
        )
    if W > 1 and C:
        state_kernel[(N * across,)](*given, dh0, N, total, C, W=W, **has, BC=BC, num_warps=1, **BITS)
    if C:
        add_parts(parts, dweight, dbias)
