"""A walk over some tokens of some channels, whatever sequences these are of. It keeps the last inputs, and the dx that
later tokens add to, so each row is read once; only the W - 1 tokens behind its own are done twice. conv1d.py has the
equations."""

import triton
import triton.language as tl
from checks import INTERPRETED
from silu import silu_terms

# A token has the same bits wherever it lies in a walk: a compiler that fused products and sums by itself would not fuse
# those of both ways below alike.
BITS = {"enable_fp_fusion": False}


def blocking(tokens: int, channels: int) -> tuple[int, int, int]:
    """(tokens of a walk, rows that it loads at once, channels of a warp): the one place to tune."""
    if INTERPRETED:
        return 64, 8, min(1024, triton.next_power_of_2(channels))  # it charges by the program
    # Longer walks do less twice, as long as there are enough of them.
    walks = tokens * channels // (128 * 128)
    return (16, 4, 64) if walks < 64 else (128 if walks >= 2048 else 64 if walks >= 512 else 32, 4, 128)


@triton.jit
def stop_of(cu_seqlens_ptr, n, num_seqs, total):
    """Where sequence n ends, inside of the rows whatever cu_seqlens holds. The rows behind the last one count as one
    more."""
    bound = tl.load(cu_seqlens_ptr + n + 1, mask=n < num_seqs, other=total).to(tl.int64)
    return tl.minimum(tl.maximum(bound, 0), total)


@triton.jit
def sequence_of(cu_seqlens_ptr, t, num_seqs, total):
    """Which sequence has token t: as many end before it."""
    low = t * 0
    high = low + num_seqs
    while low < high:
        middle = (low + high) // 2
        ended = stop_of(cu_seqlens_ptr, middle, num_seqs, total) <= t
        low = tl.where(ended, middle + 1, low)
        high = tl.where(ended, high, middle)
    return low


@triton.jit
def kept(state_ptr, n, i, c, here, C, W: tl.constexpr):
    """Input i of sequence n in a state [num_seqs, C, W - 1], if there is one."""
    here &= (i >= 0) & (i < W - 1)
    return tl.load(state_ptr + (n * C + c) * (W - 1) + i, mask=here, other=0.0).to(tl.float32)


@triton.jit
def step(taps, bias, older, open_dx, x, dy, W: tl.constexpr, NORM: tl.constexpr):
    """One token of a walk: its dp, the inputs from it on backwards, and their dx so far. `older` and `open_dx` have the
    W - 1 tokens before it, the newest first. With NORM the channels are a head, whose L2 norm comes after SiLU."""
    inputs = (x,)
    inputs += older
    p = bias
    for k in tl.static_range(W):
        p = tl.fma(taps[W - 1 - k], inputs[k], p)
    sigmoid, slope = silu_terms(p)
    if NORM:
        y = p * sigmoid
        rstd = 1.0 / tl.sqrt(tl.sum(y * y, axis=0) + 1e-6)
        dy = rstd * tl.fma(y, -(rstd * rstd * tl.sum(y * dy, axis=0)), dy)
    dp = dy * slope
    dx = (taps[W - 1] * dp,)
    for k in tl.static_range(1, W):
        dx += (tl.fma(taps[W - 1 - k], dp, open_dx[k - 1]),)
    return dp, inputs, dx


@triton.jit
def summed(dtaps, dbias, dp, inputs, W: tl.constexpr):
    sums = ()
    for j in tl.static_range(W):
        sums += (tl.fma(dp, inputs[W - 1 - j], dtaps[j]),)
    return sums, dbias + dp


@triton.jit
def put(dx_ptr, i, since, dx, c, c_in, total, C):
    """dx of token i, unless another walk has it, or it is no token but in the state before a sequence."""
    tl.store(dx_ptr + i * C + c, dx.to(dx_ptr.dtype.element_ty), mask=c_in & (i >= since) & (i < total))


@triton.jit
def walk(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dx_ptr, parts_ptr,
    num_seqs, total, C, block, c, do_c, c_in,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    NORM: tl.constexpr, BT: tl.constexpr, AT_ONCE: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx of BT tokens of channels c [BC] of C, which do has as do_c; and what dweight and dbias get of them."""
    first = block * BT
    last = stop_of(cu_seqlens_ptr, num_seqs - 1, num_seqs, total)  # from here on rows belong to no sequence
    n = sequence_of(cu_seqlens_ptr, first, num_seqs, total)
    start = tl.where(n > 0, stop_of(cu_seqlens_ptr, tl.maximum(n - 1, 0), num_seqs, total), 0)
    stop = stop_of(cu_seqlens_ptr, n, num_seqs, total)

    zero = tl.zeros([BC], dtype=tl.float32)
    bias = zero
    if HAS_BIAS:
        bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
    taps, dtaps, dbias, older, open_dx = (), (), zero, (), ()
    for j in tl.static_range(W):
        taps += (tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32),)
        dtaps += (zero,)
    for k in tl.static_range(1, W):
        i = first - k
        x = tl.load(x_ptr + i * x_row + c, mask=c_in & (i >= start) & (first < last), other=0.0).to(tl.float32)
        if HAS_STATE:
            x += kept(state_ptr, n, i - start + (W - 1), c, c_in & (i < start) & (first < last), C, W)
        older += (x,)
        open_dx += (zero,)

    for group in range(0, BT, AT_ONCE):
        t = first + group
        if (t - (W - 1) >= start) & (t + AT_ONCE <= stop - (W - 1)):  # far from the ends of a sequence
            xs, dys = (), ()
            for m in tl.static_range(AT_ONCE):  # all loads before any store, which could be to the same addresses
                here = c_in & (t + m < last)  # what other rows hold is never read
                xs += (tl.load(x_ptr + (t + m) * x_row + c, mask=here, other=0.0),)
                if HAS_DO:
                    dys += (tl.load(do_ptr + (t + m) * do_row + do_c, mask=here, other=0.0),)
            for m in tl.static_range(AT_ONCE):
                dy = zero
                if HAS_DO:
                    dy = dys[m].to(tl.float32)
                dp, inputs, dx = step(taps, bias, older, open_dx, xs[m].to(tl.float32), dy, W, NORM)
                dtaps, dbias = summed(dtaps, dbias, dp, inputs, W)
                put(dx_ptr, t + m - (W - 1), first, dx[W - 1], c, c_in, total, C)
                older, open_dx = inputs[: W - 1], dx[: W - 1]
        else:
            for m in range(AT_ONCE):
                if t + m >= stop:  # of a sequence: what is open of it is done
                    for k in tl.static_range(1, W):
                        put(dx_ptr, t + m - k, tl.maximum(first, start), open_dx[k - 1], c, c_in, total, C)
                    start = t + m
                    n += 1
                    stop = stop_of(cu_seqlens_ptr, n, num_seqs, total)
                    while (stop <= start) & (n < num_seqs):
                        n += 1
                        stop = stop_of(cu_seqlens_ptr, n, num_seqs, total)
                    if n >= num_seqs:
                        stop = first + 2 * BT + 2 * W
                    older, open_dx = (), ()
                    for k in tl.static_range(1, W):
                        x = zero
                        if HAS_STATE:
                            x = kept(state_ptr, n, W - 1 - k, c, c_in & (n < num_seqs), C, W)
                        older += (x,)
                        open_dx += (zero,)
                here = c_in & (t + m < last)
                x = tl.load(x_ptr + (t + m) * x_row + c, mask=here, other=0.0).to(tl.float32)
                dy = zero
                if HAS_DO:
                    dy = tl.load(do_ptr + (t + m) * do_row + do_c, mask=here, other=0.0).to(tl.float32)
                dp, inputs, dx = step(taps, bias, older, open_dx, x, dy, W, NORM)
                dtaps, dbias = summed(dtaps, dbias, dp, inputs, W)
                if HAS_DHT:  # the state afterwards: a sequence's last W - 1 inputs, oldest first
                    i = t + m - stop + (W - 1)
                    newest = (dx[0] + kept(dht_ptr, n, i, c, c_in & (n < num_seqs), C, W),)
                    newest += dx[1:]
                    dx = newest
                put(dx_ptr, t + m - (W - 1), tl.maximum(first, start), dx[W - 1], c, c_in, total, C)
                older, open_dx = inputs[: W - 1], dx[: W - 1]

    for k in tl.static_range(1, W):  # what the tokens behind add, as far as they are of the same sequence
        t = first + BT + k - 1
        here = c_in & (t < stop) & (t < last)
        x = tl.load(x_ptr + t * x_row + c, mask=here, other=0.0).to(tl.float32)
        dy = zero
        if HAS_DO:
            dy = tl.load(do_ptr + t * do_row + do_c, mask=here, other=0.0).to(tl.float32)
        _, inputs, dx = step(taps, bias, older, open_dx, x, dy, W, NORM)
        put(dx_ptr, t - (W - 1), tl.maximum(first, start), dx[W - 1], c, c_in, total, C)
        older, open_dx = inputs[: W - 1], dx[: W - 1]

    parts = parts_ptr + block * (W + 1) * C + c
    for j in tl.static_range(W):
        tl.store(parts + j * C, dtaps[j], mask=c_in)
    tl.store(parts + W * C, dbias, mask=c_in)


@triton.jit
def walk_from_state(
    x_ptr, x_row, weight_ptr, bias_ptr, cu_seqlens_ptr, state_ptr, do_ptr, do_row, dht_ptr, dh0_ptr,
    num_seqs, total, C, n, c, do_c, c_in,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_DO: tl.constexpr, HAS_DHT: tl.constexpr,
    NORM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dh0 of sequence n: input i of its state meets token i - j under tap j, and in a sequence of T tokens is input
    i - T of the state afterwards."""
    start = tl.where(n > 0, stop_of(cu_seqlens_ptr, tl.maximum(n - 1, 0), num_seqs, total), 0)
    stop = stop_of(cu_seqlens_ptr, n, num_seqs, total)
    zero = tl.zeros([BC], dtype=tl.float32)
    bias = zero
    if HAS_BIAS:
        bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
    taps, older, open_dx = (), (), ()
    for j in tl.static_range(W):
        taps += (tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32),)
    for k in tl.static_range(1, W):
        x = zero
        if HAS_STATE:
            x = kept(state_ptr, n, W - 1 - k, c, c_in, C, W)
        older += (x,)
        after = zero
        if HAS_DHT:
            i = W - 1 - k - (stop - start)
            after = kept(dht_ptr, n, i, c, c_in, C, W)
        open_dx += (after,)
    for k in tl.static_range(W - 1):
        t = start + k
        here = c_in & (t < stop)
        x = tl.load(x_ptr + t * x_row + c, mask=here, other=0.0).to(tl.float32)
        dy = zero
        if HAS_DO:
            dy = tl.load(do_ptr + t * do_row + do_c, mask=here, other=0.0).to(tl.float32)
        _, inputs, dx = step(taps, bias, older, open_dx, x, dy, W, NORM)
        tl.store(dh0_ptr + (n * C + c) * (W - 1) + k, dx[W - 1], mask=c_in)
        older, open_dx = inputs[: W - 1], dx[: W - 1]
