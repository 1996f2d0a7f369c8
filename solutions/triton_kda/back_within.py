"""What passes from token to token within a chunk: the gradients of its scores. And dbeta."""

import triton
import triton.language as tl
from back_prepare import stored_rows, write_gates
from chunks import known_tokens, start_of


@triton.jit
def operand(x_ptr, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr):
    """[C, BD], as an operand. A product's left operand is to go from here to shared memory as it is."""
    inside = row[:, None] & (d < D)[None, :]
    return tl.load(x_ptr + t[:, None] * STRIDE + d[None, :], mask=inside, other=0.0).to(tl.bfloat16)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def within_kernel(
    do_ptr, beta_ptr, cu_seqlens_ptr, chunks_ptr, r_ptr, dv_ptr, of_scores_ptr, of_keys_ptr, own_ptr, of_walk_ptr,
    dbeta_ptr, scale, num_seqs, total,
    H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr, SLICES: tl.constexpr, SHORT: tl.constexpr,
    C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and a head. strict_lower(dP) and B + B^T [C, C], for B = -strict_lower(dV U^T), take the
    places of P and of the inverse. `own` [2, C] is the diagonal of dP, for no decay is between a token and itself, and
    1 for tokens that write."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    t = tl.arange(0, C)
    behind = slot * C + t  # rows behind the last sequence belong to none
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    tl.store(dbeta_ptr + behind * H + h, tl.zeros([C], dtype=tl.float32), mask=none)
    if count <= 0:  # a slot that no chunk has
        return
    do_ptr += (first * H + h) * D
    r_ptr += (first * H + h) * D
    dv_ptr += (first * H + h) * D
    row, at = t < count, slot * H + h
    i, j = t[:, None], t[None, :]
    beta, _ = write_gates(beta_ptr, first * H + h + t * H, row, HAS_BETA)

    # U = diag(beta) r: the right operand is r, the factor comes afterwards.
    dP = tl.zeros([C, C], dtype=tl.float32)
    B = tl.zeros([C, C], dtype=tl.float32)
    own = tl.zeros([C], dtype=tl.float32)
    largest = tl.zeros([C], dtype=tl.float32)
    # Nothing is loaded ahead: r and G are also taken into registers, and Triton 3.6 would fill their places too early
    # (README).
    for d_first in tl.range(0, D, BD, num_stages=1):
        d = d_first + tl.arange(0, BD)
        r, G = operand(r_ptr, t, d, row, H * D, D), operand(do_ptr, t, d, row, H * D, D)
        dP = tl.dot(G, tl.trans(r), acc=dP)
        B = tl.dot(operand(dv_ptr, t, d, row, H * D, D), tl.trans(r), acc=B)
        own += tl.sum(G.to(tl.float32) * r.to(tl.float32), axis=1)
        largest = tl.maximum(largest, tl.max(tl.abs(r.to(tl.float32)), axis=1))
    dP = tl.where(i > j, dP * beta[None, :] * scale, 0.0)
    known = stored_rows(t, count, SHORT)[:, None] & (t >= 0)[None, :]
    tl.store(of_scores_ptr + at * (C * C) + i * C + j, dP.to(tl.bfloat16), mask=known)
    tl.store(own_ptr + at * (2 * C) + t, own * beta * scale)
    tl.store(own_ptr + at * (2 * C) + C + t, tl.where(largest * tl.abs(beta) > 0.0, 1.0, 0.0))
    B = tl.where(i > j, B * -beta[None, :], 0.0)
    tl.store(of_keys_ptr + at * (C * C) + i * C + j, (B + tl.trans(B)).to(tl.bfloat16), mask=known)
    dbeta = tl.zeros([C], dtype=tl.float32)
    for part in tl.static_range(SLICES):
        dbeta += tl.load(of_walk_ptr + (at * SLICES + part) * C + t)
    tl.store(dbeta_ptr + first * H + h + t * H, dbeta, mask=row)
