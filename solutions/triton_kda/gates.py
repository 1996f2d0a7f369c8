"""Log2 of the decay of each key channel, from whatever a definition gives."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LEAST: tl.constexpr = tl.constexpr(-160.0)  # 2^-160 is 0 in float32: an exact reset, and -inf too


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
def log2_decay(x, bias, rate, lower_bound, GATE: tl.constexpr):
    """Of gates as they are in memory, in float32. Not above 0, and finite: what is below LEAST is 0 all the same.

    "log": x itself. "softplus" (gate A): -rate softplus(x + bias). "bounded" (gate B): lower_bound sigmoid(rate (x +
    bias)), lower_bound < 0.
    """
    if GATE == "softplus":
        x = -rate * softplus(x + bias)
    elif GATE == "bounded":
        x = lower_bound / (1.0 + tl.exp(-rate * (x + bias)))
    return tl.maximum(x * LOG2_E, LEAST)
