"""The gradients of raw gates: alpha = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b).

With dg that of alpha, and d = dg alpha that of its logarithm:   da = d (-exp(A_log)) sigmoid(a + dt_bias)
dA_log = sum of d log alpha,   ddt_bias = sum of da,   db = dbeta sigmoid(b) sigmoid(-b)
Where alpha is 0, d is 0 and so are da and its part of the sums: exp(A_log) may be infinite.
"""

import triton
import triton.language as tl
from checks import INTERPRETED
from silu import silu_terms
from sums import add_parts


def blocking(heads: int) -> tuple[int, int]:
    """(tokens of a program, num_warps): the one place to tune."""
    return (256, 1) if INTERPRETED else (max(16, 2048 // heads), 4)


@triton.jit
def softplus(x):
    """max(x, 0) + log(1 + y), y = exp(-|x|). log(1 + y) would lose a small y. It is 2 atanh(y / (2 + y)), whose series
    has float32 after eight terms, because y / (2 + y) is at most 1/3."""
    y = tl.exp(-tl.abs(x))
    r = y / (2.0 + y)
    r2 = r * r
    rest = 1.0 / 13.0 + r2 * (1.0 / 15.0)
    rest = 1.0 / 9.0 + r2 * (1.0 / 11.0 + r2 * rest)
    rest = 1.0 / 5.0 + r2 * (1.0 / 7.0 + r2 * rest)
    return tl.maximum(x, 0.0) + 2.0 * r * (1.0 + r2 * (1.0 / 3.0 + r2 * rest))


@triton.jit
def gates_kernel(
    a_ptr, a_row, b_ptr, b_row, A_log_ptr, dt_bias_ptr, cu_seqlens_ptr, dg_ptr, dg_row, dbeta_ptr, dbeta_row, da_ptr,
    db_ptr, parts_ptr, num_seqs, total, H: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    t, h = block * BT + tl.arange(0, BT), tl.arange(0, BH)
    at = t[:, None] * H + h[None, :]
    h_in = h < H
    inside = (t < total)[:, None] & h_in[None, :]
    counted = inside & (t < tl.load(cu_seqlens_ptr + num_seqs))[:, None]  # what other rows hold is never read
    a = tl.load(a_ptr + t[:, None] * a_row + h[None, :], mask=counted, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + t[:, None] * b_row + h[None, :], mask=counted, other=0.0).to(tl.float32)
    dg = tl.load(dg_ptr + t[:, None] * dg_row + h[None, :], mask=counted, other=0.0)
    dbeta = tl.load(dbeta_ptr + t[:, None] * dbeta_row + h[None, :], mask=counted, other=0.0)
    rate = -tl.exp(tl.load(A_log_ptr + h, mask=h_in, other=0.0).to(tl.float32))[None, :]
    step = a + tl.load(dt_bias_ptr + h, mask=h_in, other=0.0).to(tl.float32)[None, :]

    log_alpha = rate * softplus(step)
    d = dg * tl.exp(log_alpha)
    counted &= log_alpha > float("-inf")  # nor is it NaN
    sigmoid, _ = silu_terms(step)
    da = tl.where(counted, d * (rate * sigmoid), 0.0)
    dA_log = tl.where(counted, d * log_alpha, 0.0)
    beta, _ = silu_terms(b)
    rest, _ = silu_terms(-b)
    tl.store(da_ptr + at, da.to(da_ptr.dtype.element_ty), mask=inside)
    tl.store(db_ptr + at, (dbeta * beta * rest).to(db_ptr.dtype.element_ty), mask=inside)
    parts = parts_ptr + block * 2 * H + h
    tl.store(parts, tl.sum(dA_log, axis=0), mask=h_in)
    tl.store(parts + H, tl.sum(da, axis=0), mask=h_in)


def gates_backward(a, b, A_log, dt_bias, cu_seqlens, dg, dbeta, da, db, dA_log, ddt_bias):
    """a, b, dg, dbeta, da, db [tokens, H], rows of the first four apart as they like; A_log, dt_bias, dA_log, ddt_bias
    [H]. Rows behind the last sequence get zeros."""
    T, H = a.shape
    BH = triton.next_power_of_2(H)
    BT, num_warps = blocking(BH)
    parts = dA_log.new_empty((triton.cdiv(T, BT), 2, H))
    if len(parts):
        gates_kernel[(len(parts),)](
            a, a.stride(0), b, b.stride(0), A_log, dt_bias, cu_seqlens, dg, dg.stride(0), dbeta, dbeta.stride(0), da,
            db, parts, len(cu_seqlens) - 1, T, H=H, BT=BT, BH=BH, num_warps=num_warps,
        )  # fmt: skip
    add_parts(parts, dA_log.view(H, 1), ddt_bias)
