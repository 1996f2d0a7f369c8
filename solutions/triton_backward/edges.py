"""What the input states lose as operands: it is multiplied here, and added where the walks start, and to dg."""

import triton
import triton.language as tl
from products import rest_of
from rows import state_at
from walks import chunks_of


@triton.jit
def add_rest_of_product(x_ptr, w_ptr, S, x_at, x_in, w_at, w_in, OPERAND: tl.constexpr):
    """x += w S, for the rest of S."""
    w = tl.load(w_ptr + w_at, mask=w_in, other=0.0)
    x = tl.load(x_ptr + x_at, mask=x_in, other=0.0).to(tl.float32)
    tl.store(x_ptr + x_at, tl.dot(w, rest_of(S, OPERAND), acc=x).to(OPERAND), mask=x_in)


@triton.jit
def product_with_rest(
    initial_ptr, ends_ptr, n, h, D: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr, H: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """<S, dS> for the rest of an initial state, and dS at the end of the first chunk, in tiles of [B, B].
    backward_kernel has taken the rounded state."""
    found = 0.0
    for first in range(0, D, B):
        for second in range(0, D, B):
            j, i = first + tl.arange(0, B), second + tl.arange(0, B)
            there = (j < D)[:, None] & (i < D)[None, :]
            S = tl.load(initial_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)
            dS = tl.load(ends_ptr + j[:, None] * D + i[None, :], mask=there, other=0.0)
            found += tl.sum(tl.sum((S - S.to(OPERAND).to(tl.float32)) * dS.to(tl.float32), axis=1), axis=0)
    return found


@triton.jit(do_not_specialize=["total"])
def edges_kernel(
    cu_seqlens_ptr, total, w_ptr, r_ptr, initial_ptr, z_ptr, x_ptr, dht_ptr,
    H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """r of a sequence's first chunk, before forward_kernel, and x of its last one, before backward_kernel."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start, slot, length = chunks_of(cu_seqlens_ptr, n, total, C)
    if length == 0:
        return
    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    there = (j < D)[:, None] & (i < D)[None, :]
    given = state_at(n, h, i, j, H, D, K_FIRST)
    channels = t[:, None] * D + j[None, :]
    if HAS_INITIAL:
        S = tl.load(initial_ptr + given, mask=there, other=0.0)
        at, row = ((start + t) * H + h)[:, None] * D + i[None, :], (t < length)[:, None] & (i < D)[None, :]
        w_at = (slot * H + h) * (C * max(C, D)) + channels
        add_rest_of_product(r_ptr, w_ptr, S, at, row, w_at, (j < D)[None, :], OPERAND)
    if HAS_DHT:
        dS = tl.load(dht_ptr + given, mask=there, other=0.0)
        chunk = tl.cdiv(length, C) - 1
        at = ((start + chunk * C + t) * H + h)[:, None] * D + i[None, :]
        row = (t < length - chunk * C)[:, None] & (i < D)[None, :]
        z_at = ((slot + chunk) * H + h) * (C * D) + channels
        add_rest_of_product(x_ptr, z_ptr, dS, at, row, z_at, (j < D)[None, :], OPERAND)
