"""What the input states lose as operands is added to dg."""

import triton
import triton.language as tl
from rows import state_at, there_are


@triton.jit
def product_with_rest(
    given_ptr, other_ptr, n, h, first, D: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr,
    H: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """<S, dS> for the rest of a given state, and the other one of the same chunk, over key channels from `first` on."""
    B: tl.constexpr = 64 if BK >= 64 else BK
    found = 0.0
    for second in tl.range(0, D, B, num_stages=1):
        j, i = first + tl.arange(0, BK), second + tl.arange(0, B)
        there = there_are(j, D)[:, None] & there_are(i, D)[None, :]
        S = tl.load(given_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)
        other = tl.load(other_ptr + j[:, None] * D + i[None, :], mask=there, other=0.0)
        found += tl.sum(tl.sum((S - S.to(OPERAND).to(tl.float32)) * other.to(tl.float32), axis=1), axis=0)
    return found
