"""What passes between tokens of a chunk, in channels that forget: parts of dq, dk and dg, before the states' parts.

Channels that last are left to back_gradients.py, which takes quotients of decays. A slice of channels is one or the
other as a whole.
"""

import triton
import triton.language as tl
from borders import LASTING, LEVELS, added, crossing, level_factor, pairs, row_at, rows_at
from chunks import tokens_of


@triton.jit
def scores_at(x_ptr, i, j, mask, C: tl.constexpr):
    """Rows i and columns j of gradients of scores, zeros outside of the mask."""
    return tl.load(x_ptr + i * C + j, mask=mask, other=0.0)


@triton.jit
def inside_of_block(
    dQ, dK, dg, q_ptr, k_ptr, P_ptr, B_ptr, sums_ptr, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr, C: tl.constexpr
):
    """Adds what passes between tokens t of one block. At one level a token is a later one or an earlier one."""
    i, j = t[:, None], t[None, :]
    for level in tl.range(0, LEVELS, num_stages=1):
        factor = level_factor(sums_ptr, t, d, level, D)
        Q, K = rows_at(q_ptr, t, d, row, STRIDE, D), rows_at(k_ptr, t, d, row, STRIDE, D)
        Q_at, K_at = (Q * factor).to(tl.bfloat16), (K * factor).to(tl.bfloat16)
        later, earlier = pairs(i, j, level), pairs(j, i, level)
        y = factor * tl.dot(scores_at(P_ptr, i, j, later, C), K_at)
        z = tl.dot(scores_at(P_ptr, j, i, earlier, C), Q_at)
        z = factor * tl.dot(scores_at(B_ptr, i, j, later | earlier, C), K_at, acc=z)
        dQ += y
        dK += z
        dg = added(dg, crossing(i, j, level).to(tl.bfloat16), Q * y + K * z)
    return dQ, dK, dg


@triton.jit(do_not_specialize=["num_seqs", "total"])
def between_kernel(
    q_ptr, k_ptr, cu_seqlens_ptr, sums_ptr, P_ptr, B_ptr, dq_part_ptr, dk_part_ptr, dg_ptr, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head, some channels and a block of 16 tokens: the later tokens of pairs with
    blocks before it, the earlier ones of pairs with blocks behind it, and those between which such pairs pass."""
    B: tl.constexpr = 16
    BLOCKS: tl.constexpr = C // B
    SLICES: tl.constexpr = (D + BD - 1) // BD
    block, rest = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    part, pair = rest % SLICES, rest // SLICES
    h, slot = pair % H, (pair // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if block * B >= count:  # a slot that no chunk has, or a block without tokens
        return
    sums_ptr += (slot * H + h) * (C * D)
    d = part * BD + tl.arange(0, BD)
    if tl.min(row_at(sums_ptr, C - 1, d, D), axis=0) >= LASTING:
        return
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HQ + h // (H // HQ)) * D
    P_ptr += (slot * H + h) * (C * C)
    B_ptr += (slot * H + h) * (C * C)
    t, s = block * B + tl.arange(0, B), tl.arange(0, C)
    row, i, j = t < count, t[:, None], t[None, :]
    before, after = s < block * B, (s >= block * B + B) & (s < count)
    start, end = row_at(sums_ptr, block * B - 1, d, D), row_at(sums_ptr, block * B + B - 1, d, D)
    upper, lower = (j >= i).to(tl.bfloat16), (j < i).to(tl.bfloat16)

    dQ = tl.zeros([B, BD], dtype=tl.float32)
    dK = tl.zeros([B, BD], dtype=tl.float32)
    dg = tl.zeros([B, BD], dtype=tl.float32)
    dQ, dK, dg = inside_of_block(dQ, dK, dg, q_ptr, k_ptr, P_ptr, B_ptr, sums_ptr, t, d, row, HQ * D, D, C)
    if block > 0:  # with tokens before: a border where the block begins
        back = tl.minimum(start[None, :] - rows_at(sums_ptr, s, d, before, D, D), 0.0)
        back = (rows_at(k_ptr, s, d, before, HQ * D, D) * tl.exp2(back)).to(tl.bfloat16)
        factor = tl.exp2(tl.minimum(rows_at(sums_ptr, t, d, t >= 0, D, D) - start[None, :], 0.0))
        there = tl.broadcast_to(before[None, :], [B, C])
        y = factor * tl.dot(scores_at(P_ptr, i, s[None, :], there, C), back)
        z = factor * tl.dot(scores_at(B_ptr, i, s[None, :], there, C), back)
        dQ += y
        dK += z
        Q, K = rows_at(q_ptr, t, d, row, HQ * D, D), rows_at(k_ptr, t, d, row, HQ * D, D)
        dg = added(dg, upper, Q * y + K * z)
    if block * B + B < count:  # with tokens behind: a border where it ends
        forth = tl.exp2(tl.minimum(rows_at(sums_ptr, s, d, after, D, D) - end[None, :], 0.0))
        Q_at = (rows_at(q_ptr, s, d, after, HQ * D, D) * forth).to(tl.bfloat16)
        K_at = (rows_at(k_ptr, s, d, after, HQ * D, D) * forth).to(tl.bfloat16)
        there = tl.broadcast_to(after[None, :], [B, C])
        z = tl.dot(scores_at(P_ptr, s[None, :], i, there, C), Q_at)
        z = tl.dot(scores_at(B_ptr, s[None, :], i, there, C), K_at, acc=z)
        z *= tl.exp2(tl.minimum(end[None, :] - rows_at(sums_ptr, t, d, t >= 0, D, D), 0.0))
        dK += z
        dg = added(dg, lower, rows_at(k_ptr, t, d, row, HQ * D, D) * z)
        through = tl.zeros([BD], dtype=tl.float32)  # past the whole block
        for other in range(block):
            e = other * B + tl.arange(0, B)
            z = tl.dot(scores_at(P_ptr, s[None, :], e[:, None], there, C), Q_at)
            z = tl.dot(scores_at(B_ptr, s[None, :], e[:, None], there, C), K_at, acc=z)
            back = tl.exp2(tl.minimum(start[None, :] - rows_at(sums_ptr, e, d, e >= 0, D, D), 0.0))
            through += tl.sum(z * back * rows_at(k_ptr, e, d, e >= 0, HQ * D, D), axis=0)
        dg += (through * tl.exp2(tl.minimum(end - start, 0.0)))[None, :]

    inside = row[:, None] & (d < D)[None, :]
    at = (slot * H + h) * (C * D) + t[:, None] * D + d[None, :]
    tl.store(dq_part_ptr + at, dQ, mask=inside)
    tl.store(dk_part_ptr + at, dK, mask=inside)
    tl.store(dg_ptr + (first * H + h) * D + t[:, None] * (H * D) + d[None, :], dg, mask=inside)
