"""The convolution as a walk over some tokens of some channels, whatever sequences these are of. It keeps the last
inputs, so each row is read once.

The walk that has a sequence's first token alone touches its state. It makes the tokens that meet the old state as well,
even where they lie behind its own, and takes the last inputs from x, whoever makes the tokens there. So no walk can see
what another has written.
"""

import triton
import triton.language as tl
from checks import INTERPRETED
from triton.language.extra import libdevice

FAST = tl.constexpr(not INTERPRETED)  # the interpreter has none of a device's functions


def blocking(tokens: int, channels: int) -> tuple[int, int, int, int | None]:
    """(tokens of a walk, rows that it loads at once, channels of a warp, registers of a thread at most): the one place
    to tune."""
    if INTERPRETED:
        return 64, 8, min(1024, triton.next_power_of_2(channels)), None  # it charges by the program
    # Longer walks read less twice, as long as there are enough of them. Without a limit the code that moves states,
    # which hardly ever runs, would take registers from all warps.
    tile = tokens * channels // 64
    return 64 if tile >= 64 * 4096 else 32 if tile >= 32 * 1024 else 8, 8, 64, 64


@triton.jit
def silu(x):
    # The fast ones take what is no normal number as 0.
    return libdevice.fast_dividef(x, 1.0 + libdevice.fast_expf(-x)) if FAST else x / (1.0 + tl.exp(-x))


@triton.jit
def stop_of(cu_seqlens_ptr, n, num_seqs, total):
    """Where sequence n ends, inside of the rows whatever cu_seqlens holds. The rows behind the last one count as one
    more."""
    bound = tl.load(cu_seqlens_ptr + n + 1, mask=n < num_seqs, other=total).to(tl.int64)
    return tl.minimum(tl.maximum(bound, 0), total)


@triton.jit
def sequence_of(cu_seqlens_ptr, t, num_seqs, total):
    """Which sequence has token t: as many end before it."""
    low, high = num_seqs * 0, num_seqs
    while low < high:
        middle = (low + high) // 2
        ended = stop_of(cu_seqlens_ptr, middle, num_seqs, total) <= t
        low = tl.where(ended, middle + 1, low)
        high = tl.where(ended, high, middle)
    return low


@triton.jit
def slot_of(slots_ptr, n, num_seqs, num_slots):
    """The slot of sequence n, or -1 for one that is skipped: a slot that is none is never followed."""
    slot = tl.load(slots_ptr + n, mask=(n >= 0) & (n < num_seqs), other=-1)
    return tl.where(slot < num_slots, tl.maximum(slot, -1), -1)


@triton.jit
def move_state(x_ptr, state_at, carried, start, stop, c0, C: tl.constexpr, W: tl.constexpr, BC: tl.constexpr):
    """Channels c0 to c0 + BC of a state, from before a sequence's tokens to after them. Input i is then token
    L - (W - 1) + i of L, or was input L + i. A thread has what are neighbours in memory, not its own channels."""
    L = tl.minimum(stop - start, W - 1).to(tl.int32)
    x_ptr += (stop - (W - 1)) * C + c0
    state_at += c0 * (W - 1)
    for part in range(W - 1):  # none reads what one before it has written
        at = part * BC + tl.arange(0, BC)
        c, i = at // (W - 1), at % (W - 1)
        here = at < (C - c0) * (W - 1)
        old = tl.load(state_at + L + at, mask=here & carried & (L + i < W - 1), other=0.0)
        new = tl.load(x_ptr + i * C + c, mask=here & (L + i >= W - 1), other=0.0)
        new = tl.where(L + i < W - 1, old, new.to(old.dtype))
        tl.debug_barrier()  # every thread has what it needs of the old state
        tl.store(state_at + at, new, mask=here)


@triton.jit
def step(taps, bias, older, x, W: tl.constexpr):
    """One token of a walk: its output, and the inputs from it on backwards. `older` has the W - 1 before it, the newest
    first."""
    inputs = (x,)
    inputs += older
    y = bias
    for j in tl.static_range(W):
        y = tl.fma(taps[j], inputs[W - 1 - j], y)
    return silu(y), inputs


@triton.jit
def near(t, first, BT: tl.constexpr, W: tl.constexpr):
    """Token t counted from the first of a walk, as far as the walk can tell: few registers hold it."""
    return tl.minimum(tl.maximum(t - first, -W), BT + W).to(tl.int32)


@triton.jit
def walk(
    x_ptr, weight_ptr, bias_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, flags_ptr, output_ptr,
    num_seqs, total, num_slots, slot_stride, first, c0, c, c_in,
    C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BT: tl.constexpr, AT_ONCE: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """BT tokens from `first` on, of channels c [BC] from c0 on. Tokens count from `first`."""
    n = sequence_of(cu_seqlens_ptr, first, num_seqs, total)
    before = tl.where(n > 0, stop_of(cu_seqlens_ptr, tl.maximum(n - 1, 0), num_seqs, total), 0)
    start = near(before, first, BT, W)
    stop = near(stop_of(cu_seqlens_ptr, n, num_seqs, total), first, BT, W)
    last = near(stop_of(cu_seqlens_ptr, num_seqs - 1, num_seqs, total), first, BT, W)  # behind it rows are no tokens
    since = start + (W - 1)  # before this the walk with its first token makes them
    if start >= 0:  # none has begun: the next one will, at its first token
        n, stop, since = n - 1, 0, 0
    live = slot_of(slots_ptr, n, num_seqs, num_slots) >= 0

    zero = tl.zeros([BC], dtype=tl.float32)
    bias = zero
    if HAS_BIAS:
        bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
    taps, older = (), ()
    for j in tl.static_range(W):
        taps += (tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32),)
    x_from, output_from = x_ptr + first * C, output_ptr + first * C
    for k in tl.static_range(1, W):
        older += (tl.load(x_from - k * C + c, mask=c_in & (start <= -k) & (last > 0), other=0.0).to(tl.float32),)

    for t in range(0, BT, AT_ONCE):
        x_at, output_at = x_from + t * C + c, output_from + t * C + c
        if live & (t >= since) & (t + AT_ONCE <= stop):  # far from the ends of a sequence
            xs = ()
            for m in tl.static_range(AT_ONCE):  # all loads before any store, which could be to the same addresses
                xs += (tl.load(x_at + m * C, mask=c_in, other=0.0),)
            for m in tl.static_range(AT_ONCE):
                y, inputs = step(taps, bias, older, xs[m].to(tl.float32), W)
                tl.store(output_at + m * C, y.to(output_ptr.dtype.element_ty), mask=c_in)
                older = inputs[: W - 1]
        elif t < last:
            xs = ()
            for m in tl.static_range(AT_ONCE):  # what rows behind the last sequence hold is never read
                xs += (tl.load(x_at + m * C, mask=c_in & (t + m < last), other=0.0),)
            for m in range(t, tl.minimum(t + AT_ONCE, last)):
                if m >= stop:  # another sequence begins
                    n += 1
                    end = stop_of(cu_seqlens_ptr, n, num_seqs, total)
                    while (end <= first + m) & (n < num_seqs):
                        n += 1
                        end = stop_of(cu_seqlens_ptr, n, num_seqs, total)
                    start, since, stop = m, m, near(end, first, BT, W)
                    slot = slot_of(slots_ptr, n, num_seqs, num_slots)
                    carried = tl.load(flags_ptr + n, mask=n < num_seqs, other=0) != 0
                    live = slot >= 0
                    state_at = pool_ptr + slot.to(tl.int64) * slot_stride
                    older = ()
                    for k in tl.static_range(1, W):
                        at = state_at + c * (W - 1) + (W - 1 - k)
                        older += (tl.load(at, mask=c_in & live & carried, other=0.0).to(tl.float32),)
                    if live:
                        move_state(x_ptr, state_at, carried, first + m, end, c0, C, W, BC)
                y, inputs = step(taps, bias, older, xs[0].to(tl.float32), W)
                y = tl.where(live, y, 0.0).to(output_ptr.dtype.element_ty)
                tl.store(output_from + m * C + c, y, mask=c_in & (m >= since))
                older = inputs[: W - 1]
                coming = xs[1:]
                coming += (xs[0],)
                xs = coming

    if start > BT - (W - 1):  # tokens behind its own meet an old state that this walk alone has seen
        for m in range(BT, tl.minimum(tl.minimum(stop, last), start + (W - 1))):
            x = tl.load(x_from + m * C + c, mask=c_in, other=0.0).to(tl.float32)
            y, inputs = step(taps, bias, older, x, W)
            y = tl.where(live, y, 0.0).to(output_ptr.dtype.element_ty)
            tl.store(output_from + m * C + c, y, mask=c_in)
            older = inputs[: W - 1]


# Compiled for one sequence, where all would be constants, Triton 3.6 fails.
@triton.jit(do_not_specialize=["num_seqs", "total", "num_slots"])
def prefill_kernel(
    x_ptr, weight_ptr, bias_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, flags_ptr, output_ptr,
    num_seqs, total, num_slots, slot_stride,
    C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BT: tl.constexpr, AT_ONCE: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (C + BC - 1) // BC
    first = (tl.program_id(0) // across).to(tl.int64) * BT
    c0 = tl.program_id(0) % across * BC
    c = c0 + tl.arange(0, BC)
    walk(
        x_ptr, weight_ptr, bias_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, flags_ptr, output_ptr,
        num_seqs, total, num_slots, slot_stride, first, c0, c, c < C, C, W, HAS_BIAS, BT, AT_ONCE, BC,
    )  # fmt: skip
