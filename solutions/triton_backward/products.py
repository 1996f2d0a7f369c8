"""Products of float32 tensors on tensor cores that multiply bfloat16.

The left operand of a wgmma must not come from registers (README): what a kernel has computed is a right operand, or
both are, and then the product is a batch, which Triton gives to mma.sync.
"""

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
def loaded_times(X, Y, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """X Y for a loaded X, in the operands' type, and a float32 Y: in two terms, or in one if all is float32."""
    if TERMS == 1:
        XY = tl.dot(X, Y, input_precision=PRECISION)
    else:
        high, low = two_terms(Y)
        XY = tl.dot(X, high, acc=tl.dot(X, low))
    return XY


@triton.jit
def batched_product(X, Y, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """X Y for float32 X and Y [N, B, B]. In two terms each: three products, with errors of 2^-16."""
    if TERMS == 1:
        XY = tl.dot(X, Y, input_precision=PRECISION)
    else:
        X_high, X_low = two_terms(X)
        Y_high, Y_low = two_terms(Y)
        XY = tl.dot(X_high, Y_high, acc=tl.dot(X_high, Y_low, acc=tl.dot(X_low, Y_high)))
    return XY


@triton.jit
def rest_of(X, OPERAND: tl.constexpr):
    """What a float32 X loses as an operand, as an operand."""
    return (X - X.to(OPERAND).to(tl.float32)).to(OPERAND)
