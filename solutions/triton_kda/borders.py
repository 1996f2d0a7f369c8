"""Pairs of tokens of a chunk with a border between them, for the backward pass.

The later token decays from the border on, the earlier one up to it: both factors are at most 1. Between blocks their
exponents are differences of G, the sums of gates from the chunk's start that are in memory. G is at most 10,240 in
magnitude (gates are cut off at -160): what such a difference loses is less than bfloat16 rounds off. Inside of a block
exponents are sums of gates, each a difference of two rows of G.

Pairs in different blocks of 16 tokens have the border where a block begins or ends. Those in one block have it at four
levels: at level l tokens stand in groups of 2 S, S = 2^l, with a border in the middle, and every pair meets across one.

A gate is crossed by the pairs on both sides of it. Of those that meet at a level it is, for a token of a later half,
what tokens of this half from it on have of such pairs; for one of an earlier half, what tokens before it have. So the
gradients of gates are sums of products that have the gate as a factor, and nothing is subtracted.
"""

import triton
import triton.language as tl
from products import two_terms

LEVELS: tl.constexpr = tl.constexpr(4)  # inside of blocks
LASTING: tl.constexpr = tl.constexpr(-64.0)  # where channels decay by no more than 2^this, a quotient is safe


@triton.jit
def rows_at(x_ptr, t, d, inside, STRIDE: tl.constexpr, D: tl.constexpr):
    """Rows t of some channels, in float32, zeros where not `inside`: [.., BD]."""
    mask = inside[:, None] & (d < D)[None, :]
    return tl.load(x_ptr + t[:, None] * STRIDE + d[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def row_at(sums_ptr, t, d, D: tl.constexpr):
    """The sum of gates up to token t, 0 before the first: [BD]."""
    return tl.load(sums_ptr + t * D + d, mask=(d < D) & (t >= 0), other=0.0)


@triton.jit
def added(sums, ones, x):
    """sums + ones x, of 0 and 1 in `ones` and a float32 x, in two terms: 2^-16 of each element is lost."""
    high, low = two_terms(x)
    return tl.dot(ones, high, acc=tl.dot(ones, low, acc=sums))
