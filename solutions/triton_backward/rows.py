"""Where a chunk's rows lie, in tensors [tokens, heads, channels], and the elements of a caller's state."""

import triton
import triton.language as tl

LEAST: tl.constexpr = tl.constexpr(2.0**-40)  # beside an error of its size a write is nothing in float32


@triton.jit
def there_are(i, D: tl.constexpr):
    """Which channels i there are. Slices that divide D lack none, and then no load needs a mask for them."""
    if i.shape[0] * (D // i.shape[0]) == D:  # noqa: SIM108  Triton compiles both sides of an expression
        found = tl.full(i.shape, 1, dtype=tl.int1)
    else:
        found = i < D
    return found


@triton.jit
def channels_of(x_ptr, t, d, row, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """[C, BD]. A product's left operand is to go from here to shared memory as it is."""
    return tl.load(
        x_ptr + t[:, None] * (HEADS * SIZE) + d[None, :], mask=row[:, None] & there_are(d, SIZE)[None, :], other=0.0
    )


@triton.jit
def store_channels(x_ptr, x, t, d, row, HEADS: tl.constexpr, SIZE: tl.constexpr):
    mask = row[:, None] & there_are(d, SIZE)[None, :]
    tl.store(x_ptr + t[:, None] * (HEADS * SIZE) + d[None, :], x.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def triangle(t, C: tl.constexpr):
    """Offsets [C, C] of a lower triangle in C (C + 8) / 2 places, and which elements have one: 8 columns at a time,
    from the first row that they reach. So 16 bytes are moved at a time, and offsets are the same from row to row."""
    columns = t // 8
    at = (8 * C - 32 - 32 * columns) * columns + t % 8
    return t[:, None] * 8 + at[None, :], t[:, None] >= (columns * 8)[None, :]


@triton.jit
def write_gates(beta_ptr, at, row, HAS_BETA: tl.constexpr):
    """beta of a chunk's tokens, and 0 past them."""
    beta = tl.where(row, 1.0, 0.0)
    if HAS_BETA:
        beta = tl.load(beta_ptr + at, mask=row, other=0.0)
    return beta


@triton.jit
def scaled(X, scale, norm_ptr, at, row, NORMED: tl.constexpr):
    """X [C, B] with the factor of the read-out. NORMED: also of each token's query, which is so not rounded."""
    X *= scale
    if NORMED:
        X *= tl.load(norm_ptr + at, mask=row, other=0.0)[:, None]
    return X


@triton.jit
def state_at(n, h, i, j, H: tl.constexpr, D: tl.constexpr, K_FIRST: tl.constexpr):
    """Offsets of state elements, key channels j by value channels i, in the caller's layout."""
    of_layout = j[:, None] * D + i[None, :] if K_FIRST else i[None, :] * D + j[:, None]
    return (n * H + h).to(tl.int64) * (D * D) + of_layout  # states outgrow 32 bits


@triton.jit
def scores_of(x_ptr, y_ptr, t, row, X_HEADS: tl.constexpr, Y_HEADS: tl.constexpr, D: tl.constexpr,
              OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):  # fmt: skip
    """X Y^T [C, C]."""
    XY = tl.zeros([C, C], dtype=tl.float32)
    for d_first in range(0, D, BD):
        d = d_first + tl.arange(0, BD)
        X = channels_of(x_ptr, t, d, row, X_HEADS, D).to(OPERAND)
        Y = channels_of(y_ptr, t, d, row, Y_HEADS, D).to(OPERAND)
        XY = tl.dot(X, tl.trans(Y), acc=XY, input_precision=PRECISION)
    return XY
