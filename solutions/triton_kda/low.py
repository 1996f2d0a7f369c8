"""A float32 tensor as bfloat16, which products take, and eight bits more."""

import triton
import triton.language as tl


@triton.jit
def bits_of(high):
    """Of a bfloat16 tensor, as those of float32."""
    return high.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def low_bits(X, high):
    """What a float32 X has beyond `high`, its bfloat16, in 256ths of its last bit: an int8."""
    beyond = X.to(tl.int32, bitcast=True) - bits_of(high)  # from -2^15 to 2^15
    return tl.minimum((beyond + 128) >> 8, 127).to(tl.int8)


@triton.jit
def low_of(high, low):
    """The difference that `low` stands for: a bfloat16 tensor, which has as many bits."""
    X = (bits_of(high) + (low.to(tl.int32) << 8)).to(tl.float32, bitcast=True)
    return (X - high.to(tl.float32)).to(tl.bfloat16)
