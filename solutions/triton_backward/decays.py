"""Decays between the tokens of a chunk, and the gradients of the gates that they are products of."""

import triton
import triton.language as tl
from products import loaded_times

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
RESET: tl.constexpr = tl.constexpr(-1024.0)  # whole numbers, so that sums of them are exact
LOST_BELOW: tl.constexpr = tl.constexpr(-192.0)
STEEP: tl.constexpr = tl.constexpr(2.0**-64)  # an alpha below that is not divided by


@triton.jit
def log_decay(g_ptr, at, inside, GATE: tl.constexpr, C: tl.constexpr):
    """From the chunk's start to each token: the sum of log2 alpha, and RESET for every reset (alpha = 0). Both [C].

    A reset stays out of the first, which so remains exact beside it. alpha_{j+1} .. alpha_i is then 2 to the difference
    of the second plus that of the first, in this order: where there is a reset between, 2^-1024 and less are 0.
    """
    if GATE == "linear":
        x = tl.log2(tl.load(g_ptr + at, mask=inside, other=1.0))
    elif GATE == "log":
        x = tl.load(g_ptr + at, mask=inside, other=0.0) * LOG2_E
    else:
        x = tl.zeros([C], dtype=tl.float32)
    reset = x < -150.0  # alpha is 0 in float32; a larger number would drown its neighbours in the sums
    return tl.cumsum(tl.where(reset, 0.0, x), axis=0), tl.cumsum(tl.where(reset, RESET, 0.0), axis=0)


@triton.jit
def decay(x):
    """2^x of a sum x. A GPU's exp2 flushes results below 2^-126 to 0. A state may be as large as they are small, and
    dh0 as small: so they are formed 2^64 larger."""
    tiny = x < -125.0
    return tl.exp2(tl.where(tiny, x + 64.0, x)) * tl.where(tiny, 2.0**-64, 1.0)


@triton.jit
def decays_between(like, fall, resets):
    """Gamma [C, C], right on the diagonal and below. It starts from zeros of a product, `like`: then it is formed where
    that lies; by itself Triton lays it out otherwise, and carries it through shared memory."""
    Gamma = like * 0.0 + resets[:, None] - resets[None, :] + fall[:, None] - fall[None, :]
    return tl.exp2(tl.minimum(Gamma, 0.0))


@triton.jit
def entry(x, t, at):
    """x[at], or 0 where there is none."""
    return tl.sum(tl.where(t == at, x, 0.0), axis=0)


@triton.jit
def from_token(fall, resets, t, at):
    """Gamma[:, at] for tokens from `at` on, else 0. If `at` is -1, from the state before the chunk."""
    found = decay(tl.minimum(resets - entry(resets, t, at) + (fall - entry(fall, t, at)), 0.0))
    return tl.where(t >= at, found, 0.0)


@triton.jit
def to_token(fall, resets, t, at):
    """Gamma[at, :] for tokens up to `at`, else 0."""
    found = decay(tl.minimum(entry(resets, t, at) - resets + (entry(fall, t, at) - fall), 0.0))
    return tl.where(t <= at, found, 0.0)


@triton.jit
def store_lost(at, KK, beta, fall, t, C: tl.constexpr):
    """How much of a state a chunk leaves, at the most: log2 of the norm of what it multiplies by.

    A token multiplies by alpha (I - beta k k^T), whose norm is alpha times the larger of 1 and |1 - beta k . k|.
    """
    squares = tl.sum(tl.where(t[:, None] == t[None, :], KK, 0.0), axis=1)
    grows = tl.log2(tl.maximum(tl.abs(1.0 - beta * squares), 1.0))
    tl.store(at, tl.sum(grows, axis=0) + entry(fall, t, C - 1))


@triton.jit
def lost_of(lost_ptr, first, h, chunks, H: tl.constexpr, C: tl.constexpr, SEGMENT: tl.constexpr):
    """Of a segment whose first chunk has slot `first`: the last chunk from which on all that was before is lost, or 0;
    the first chunk up to which all that comes after is lost to a walk back, or the last; and whether all is lost over
    the segment. Lost is what 2^-192 and less is left of: in float32 that is nothing, however large a state was."""
    c = tl.arange(0, SEGMENT)
    inside = c < chunks
    x = tl.load(lost_ptr + ((first + c) * H + h) * C, mask=inside, other=0.0)
    until, total = tl.cumsum(x, axis=0), tl.sum(x, axis=0)
    begin = tl.max(tl.where(inside & (total - until + x < LOST_BELOW), c, 0), axis=0)
    last = tl.min(tl.where(inside & (until < LOST_BELOW), c, chunks - 1), axis=0)
    return begin, last, total < LOST_BELOW


@triton.jit
def steep_gates(g_ptr, at, inside, GATE: tl.constexpr, C: tl.constexpr):
    """alpha where it is divided by, and where it is too steep for that. A log gate is not divided by."""
    if GATE == "linear":
        alpha = tl.load(g_ptr + at, mask=inside, other=1.0)
        steep = alpha < STEEP
        alpha = tl.where(steep, 1.0, alpha)
    else:
        alpha = tl.full([C], 1.0, dtype=tl.float32)
        steep = alpha < 0.0
    return alpha, steep


@triton.jit
def gates_between_tokens(between, later_ptr, TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr):
    """What reaches each gate through decays between tokens: `between` [C, C] has each of them times its gradient.

    Gamma_ij has the factor alpha_t where j < t <= i, so alpha_t dalpha_t is the sum of Gamma_ij dGamma_ij over these:
    first over i, downwards, then over j. Nothing is subtracted: all terms of a sum have the factor alpha_t, and a
    division takes it out (gates.py). `later` [C, C] holds ones where i >= t: the sums over i are a product.
    """
    t = tl.arange(0, C)
    sums = loaded_times(tl.load(later_ptr + t[:, None] * C + t[None, :]), between, TERMS, PRECISION)
    return tl.sum(tl.where(t[None, :] < t[:, None], sums, 0.0), axis=1)
