"""Products of float32 tensors on tensor cores that multiply bfloat16."""

import triton
import triton.language as tl


@triton.jit
def two_terms(X):
    """A float32 X as the sum of two bfloat16 tensors, to 2^-16 of each element.

    The first is cut off, not rounded: then it is a mask of the bits, where a conversion there and back is slow.
    """
    high = (X.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), (X - high).to(tl.bfloat16)


@triton.jit
def product(X, Y, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """X Y for a float32 X and a Y in the operands' type: X in two terms of it, or in one where that is float32."""
    if TERMS == 1:
        XY = tl.dot(X, Y, input_precision=PRECISION)
    else:
        high, low = two_terms(X)
        XY = tl.dot(high, Y, acc=tl.dot(low, Y))
    return XY


@triton.jit
def product_of_floats(X, Y, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """X Y for float32 X and Y. In two terms each: three products, whose errors are 2^-16; the fourth would add less."""
    if TERMS == 1:
        XY = tl.dot(X, Y, input_precision=PRECISION)
    else:
        X_high, X_low = two_terms(X)
        Y_high, Y_low = two_terms(Y)
        XY = tl.dot(X_high, Y_high, acc=tl.dot(X_high, Y_low, acc=tl.dot(X_low, Y_high)))
    return XY
