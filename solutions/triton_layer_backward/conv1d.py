"""The gradients of the causal convolution before the rule, and of its SiLU.

With a sequence's state before its inputs, and i = t - (W - 1) + j the input that token t meets under tap j:

    p[t] = bias + sum_j weight[j] x[i],   dp = do silu'(p)        dweight[j] = sum_t dp[t] x[i],   dbias = sum_t dp[t]
    dx[i] = sum_j weight[j] dp[t], of tokens t in the sequence, and dht where the state afterwards has input i

tokens_kernel owns some channels of some tokens, whatever sequences these are of. It makes dp of the W - 1 tokens behind
its own again, from loads one row apart that the caches serve: less time than a trip of dp through memory. state_kernel
has dh0, the gradients of inputs before a sequence's first. sums.py adds what blocks leave of dweight and dbias.
"""

import torch
import triton
import triton.language as tl
from checks import DEBUG, INTERPRETED, check_bounds, require, require_dimensions
from sums import add_parts, silu_terms


def blocking(channels: int) -> tuple[int, int, int]:
    """(tokens and channels of a program, num_warps): the one place to tune."""
    if INTERPRETED:
        return 64, min(1024, triton.next_power_of_2(channels)), 1  # it charges by the program
    return 32, 64, 4


@triton.jit
def bound_of(cu_seqlens_ptr, n, total, mask):
    """Where sequence n starts, inside of the rows whatever cu_seqlens holds."""
    bound = tl.load(cu_seqlens_ptr + n, mask=mask, other=0).to(tl.int64)
    return tl.minimum(tl.maximum(bound, 0), total)


@triton.jit
def sequence_of(cu_seqlens_ptr, t, num_seqs, total, BT: tl.constexpr):
    """The last sequence that starts at each token or before it."""
    low = tl.zeros([BT], dtype=tl.int32)
    high = low + num_seqs
    width = num_seqs
    while width > 1:
        middle = (low + high) // 2
        before = (bound_of(cu_seqlens_ptr, middle, total, middle < num_seqs) <= t) & (middle < high)
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
        width = (width + 1) // 2
    return low


@triton.jit
def met(
    x_ptr, x_row, state_ptr, n, t, start, stop, c, c_in, C,
    AFTER: tl.constexpr, W: tl.constexpr, HAS_STATE: tl.constexpr,
):  # fmt: skip
    """The inputs AFTER tokens after each of t [BT], before it if less than 0: of the tokens, or of the state before a
    sequence's first one, whose rows are [num_seqs (W - 1), C]. The same loads whoever asks: the compiler has them
    once."""
    row = t + AFTER
    inside = ((row >= start) & (row < stop))[:, None] & c_in[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_STATE and AFTER < 0:
        at = (n * (W - 1) + row - start + (W - 1))[:, None] * C + c[None, :]
        before = ((row < start) & (t < stop))[:, None] & c_in[None, :]
        x += tl.load(state_ptr + at, mask=before, other=0.0).to(tl.float32)
    return x


@triton.jit
def tap(taps_ptr, c, c_in, C, j):
    """Of taps [W, C]."""
    return tl.load(taps_ptr + j * C + c, mask=c_in, other=0.0).to(tl.float32)[None, :]


@triton.jit
def slope_at(
    x_ptr, x_row, taps_ptr, bias_ptr, state_ptr, do_ptr, do_row, n, t, start, stop, c, c_in, C,
    K: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dp of the tokens K after each of t [BT], in sequences from start to stop, and zero behind these."""
    dp = tl.zeros([BT, BC], dtype=tl.float32)
    if HAS_DO:
        p = tl.zeros([BT, BC], dtype=tl.float32)
        if HAS_BIAS:
            p += tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
        for j in tl.static_range(W):
            x = met(x_ptr, x_row, state_ptr, n, t, start, stop, c, c_in, C, K + j - (W - 1), W, HAS_STATE)
            p += tap(taps_ptr, c, c_in, C, j) * x
        on, off = silu_terms(p)
        inside = (t + K < stop)[:, None] & c_in[None, :]
        dy = tl.load(do_ptr + (t + K)[:, None] * do_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
        dp = dy * (on * (1.0 + p * off))
    return dp


# Compiled for one sequence, where all would be constants, Triton 3.6 fails.
@triton.jit(do_not_specialize=["num_seqs"])
def tokens_kernel(
    x_ptr, x_row, taps_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dx_ptr, parts_ptr,
    num_seqs, total, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    across = (C + BC - 1) // BC
    block = (tl.program_id(0) // across).to(tl.int64)
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    c_in = c < C
    t = block * BT + tl.arange(0, BT)
    n = sequence_of(cu_seqlens_ptr, t, num_seqs, total, BT).to(tl.int64)
    start = bound_of(cu_seqlens_ptr, n, total, t < total)
    stop = bound_of(cu_seqlens_ptr, n + 1, total, t < total)
    inside = (t < stop)[:, None] & c_in[None, :]

    dx = tl.zeros([BT, BC], dtype=tl.float32)
    if HAS_DHT:  # the state afterwards: a sequence's last W - 1 inputs, oldest first
        i = t - stop + (W - 1)
        at = (n * (W - 1) + i)[:, None] * C + c[None, :]
        dx += tl.load(dht_ptr + at, mask=inside & (i >= 0)[:, None], other=0.0)
    dp = dx
    for back in tl.static_range(W):  # tap j of the token W - 1 - j behind
        dp = slope_at(
            x_ptr, x_row, taps_ptr, bias_ptr, state_ptr, do_ptr, do_row, n, t, start, stop, c, c_in, C,
            W - 1 - back, W, HAS_BIAS, HAS_STATE, HAS_DO, BT, BC,
        )  # fmt: skip
        dx += tap(taps_ptr, c, c_in, C, back) * dp
    # Rows behind the last sequence have nothing: zeros.
    dx = tl.where(inside, dx, 0.0)
    # The last dp is that of the block's own tokens.
    parts = parts_ptr + block * (W + 1) * C + c
    for j in tl.static_range(W):
        x = met(x_ptr, x_row, state_ptr, n, t, start, stop, c, c_in, C, j - (W - 1), W, HAS_STATE)
        tl.store(parts + j * C, tl.sum(dp * x, axis=0), mask=c_in)
    tl.store(parts + W * C, tl.sum(dp, axis=0), mask=c_in)
    tl.store(
        dx_ptr + t[:, None] * C + c[None, :], dx.to(dx_ptr.dtype.element_ty),
        mask=(t < total)[:, None] & c_in[None, :],
    )  # fmt: skip


@triton.jit
def state_kernel(
    x_ptr, x_row, taps_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dh0_ptr, total, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """dh0 of one sequence: input i of its state meets token i - j under tap j, and in a sequence of T tokens is input
    i - T of the state afterwards."""
    across = (C + BC - 1) // BC
    one = tl.zeros([1], dtype=tl.int64)
    n = one + tl.program_id(0) // across
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    c_in = c < C
    start = bound_of(cu_seqlens_ptr, n, total, one == 0)
    stop = bound_of(cu_seqlens_ptr, n + 1, total, one == 0)
    for i in tl.static_range(W - 1):
        dh0 = tl.zeros([1, BC], dtype=tl.float32)
        for j in tl.static_range(i + 1):
            dp = slope_at(
                x_ptr, x_row, taps_ptr, bias_ptr, state_ptr, do_ptr, do_row, n, start, start, stop, c, c_in,
                C, i - j, W, HAS_BIAS, HAS_STATE, HAS_DO, 1, BC,
            )  # fmt: skip
            dh0 += tap(taps_ptr, c, c_in, C, j) * dp
        if HAS_DHT:
            kept = start + i - stop
            at = (n * (W - 1) + kept)[:, None] * C + c[None, :]
            dh0 += tl.load(dht_ptr + at, mask=(kept >= 0)[:, None] & c_in[None, :], other=0.0)
        tl.store(dh0_ptr + (n * C)[:, None] * (W - 1) + (c * (W - 1) + i)[None, :], dh0, mask=c_in[None, :])


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
    BT, BC, num_warps = blocking(C)
    blocks, across = triton.cdiv(total, BT), triton.cdiv(C, BC)
    has = {"HAS_BIAS": bias is not None, "HAS_STATE": initial_state is not None, "HAS_DO": do is not None}
    has["HAS_DHT"] = dht is not None
    do_row = 0 if do is None else do.stride(0)
    # Rows of channels, as tokens are: else each element has an address of its own.
    taps = weight.T.contiguous()
    state, after = (None if y is None else y.transpose(1, 2).contiguous() for y in (initial_state, dht))
    parts = dweight.new_empty((blocks, W + 1, C))
    if blocks and C:
        tokens_kernel[(blocks * across,)](
            x, x.stride(0), taps, bias, cu_seqlens, state, do, do_row, after, dx, parts, N, total, C,
            W=W, **has, BT=BT, BC=BC, num_warps=num_warps,
        )  # fmt: skip
    if W > 1 and C:
        state_kernel[(N * across,)](
            x, x.stride(0), taps, bias, cu_seqlens, state, do, do_row, after, dh0, total, C,
            W=W, **has, BC=BC, num_warps=1 if INTERPRETED else 2,
        )  # fmt: skip
    if C:
        add_parts(parts, dweight, dbias)
