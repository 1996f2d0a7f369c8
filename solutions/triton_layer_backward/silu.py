"""SiLU, x sigmoid(x), and its slope."""

import triton
import triton.language as tl
from checks import INTERPRETED
from triton.language.extra import libdevice

FAST = tl.constexpr(not INTERPRETED)  # the interpreter has none of a device's functions


@triton.jit
def silu_terms(x):
    """sigmoid(x), and silu'(x) = sigmoid(x) (1 + x sigmoid(-x)).

    With e = exp(-|x|), one of sigmoid(x) and sigmoid(-x) is 1 / (1 + e), and the other e / (1 + e): neither is a
    difference from 1, which would lose a small one. An e of no normal number becomes 0."""
    if FAST:
        e = libdevice.fast_expf(-tl.abs(x))
        larger = libdevice.fast_dividef(1.0, 1.0 + e)
    else:
        e = tl.exp(-tl.abs(x))
        larger = 1.0 / (1.0 + e)
    smaller = e * larger
    sigmoid = tl.where(x >= 0, larger, smaller)
    return sigmoid, tl.fma(x, larger * smaller, sigmoid)
