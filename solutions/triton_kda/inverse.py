"""(I + A)^-1 for a strictly lower triangular A, by pairs of diagonal blocks.

What is multiplied are parts of A and of the inverse, never powers of A: those grow like binomials where keys repeat,
and cancel.
"""

import triton
import triton.language as tl
from products import product_of_floats


@triton.jit
def merge(X, A, i, j, SIZE: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of the diagonal blocks of SIZE rows of I + A to those of 2 SIZE rows, for

    [[X1^-1, 0], [L, X2^-1]]^-1 = [[X1, 0], [-X2 L X1, X2]].
    """
    L = tl.where((i // SIZE == j // SIZE + 1) & (i // SIZE % 2 == 1), A, 0.0)
    XL = product_of_floats(X, L, TERMS, PRECISION)
    return X - product_of_floats(XL, X, TERMS, PRECISION)


@triton.jit
def block_of(A, chosen, N: tl.constexpr, B: tl.constexpr):
    """Of each row of blocks of A [N B, N B] the one that is chosen: [N, B, B]."""
    return tl.sum(tl.reshape(tl.where(chosen, A, 0.0), [N, B, N, B]), axis=2)


@triton.jit
def across(X, N: tl.constexpr, B: tl.constexpr):
    """[N B, N B] with N copies of each block of X [N, B, B] side by side."""
    return tl.reshape(tl.broadcast_to(X[:, :, None, :], [N, B, N, B]), [N * B, N * B])


@triton.jit
def unit_lower_inverse(A, C: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """(I + strict_lower(A))^-1 of A [C, C], in float32."""
    B: tl.constexpr = 16  # the least that tensor cores multiply
    N: tl.constexpr = C // B
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]

    # Blocks on the diagonal, and those left of it, [N, B, B]: a product of such is one of N pairs of blocks.
    on = block_of(A, i // B == j // B, N, B)
    left = block_of(A, (i // B == j // B + 1) & (i // B % 2 == 1), N, B)

    # From blocks of one row, whose inverses are ones, to blocks of B.
    r, c = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    X = tl.where(r == c, 1.0, 0.0) - tl.where((r == c + 1) & (r % 2 == 1), on, 0.0)
    X = merge(X, on, r, c, 2, TERMS, PRECISION)
    X = merge(X, on, r, c, 4, TERMS, PRECISION)
    X = merge(X, on, r, c, 8, TERMS, PRECISION)

    # To blocks of 2 B: block n - 1 is given to block n, for odd n.
    above = tl.where(tl.arange(0, N)[:, None, None] % 2 == 0, X, 0.0)
    above = tl.sum(tl.reshape(above, [N // 2, 2, B, B]), axis=1)
    above = tl.reshape(tl.broadcast_to(above[:, None, :, :], [N // 2, 2, B, B]), [N, B, B])
    Y = product_of_floats(product_of_floats(X, left, TERMS, PRECISION), above, TERMS, PRECISION)

    # Put into a matrix, and merged to the end.
    X = tl.where(i // B == j // B, across(X, N, B), 0.0) - tl.where(i // B == j // B + 1, across(Y, N, B), 0.0)
    return merge(X, A, i, j, 2 * B, TERMS, PRECISION)
