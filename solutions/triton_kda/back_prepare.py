"""What the backward pass needs of all chunks at once, before any state is known: decays, scores, inverses."""

import triton
import triton.language as tl
from borders import LASTING, LEVELS, level_factor, pairs, row_at, rows_at
from chunks import tokens_of
from gates import log2_decay
from inverse import unit_lower_inverse
from scores import spans

LEAST: tl.constexpr = tl.constexpr(2.0**-40)  # beside an error of its size a write is nothing in float32


@triton.jit
def write_gates(beta_ptr, at, row, HAS_BETA: tl.constexpr):
    """beta of a chunk's tokens, 0 past them; and the same without what is too small to divide by."""
    beta = tl.where(row, 1.0, 0.0)
    if HAS_BETA:
        beta = tl.load(beta_ptr + at, mask=row, other=0.0).to(tl.float32)
    return beta, tl.where(tl.abs(beta) < LEAST, LEAST, beta)


@triton.jit
def stored_rows(t, count, SHORT: tl.constexpr):
    """Rows of sums and of scores that are in memory. SHORT: most chunks have few tokens, and only blocks of 16 with
    tokens are written and read."""
    return t < ((count + 15) // 16 * 16 if SHORT else t.shape[0])


@triton.jit
def used_rows(row, SHORT: tl.constexpr):
    """Rows of the other operands that are in memory."""
    return row | (not SHORT)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def decays_kernel(
    q_ptr, k_ptr, g_ptr, cu_seqlens_ptr, sums_ptr, from_q_ptr, from_k_ptr, to_end_ptr, fall_ptr, ones_ptr, scale,
    num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head and some channels: sums of gates, in float32; scale gamma * Q, gamma * K and
    Gamma_C,: * K; and gamma_C. The first one makes tables of ones: [C, C] on
    the diagonal and above it; below it; and [16, 16] for each level, where a token's factor there has a gate.
    """
    SLICES: tl.constexpr = (D + BD - 1) // BD
    part, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, slot = pair % H, (pair // H).to(tl.int64)
    t, d = tl.arange(0, C), part * BD + tl.arange(0, BD)
    if tl.program_id(0) == 0:
        square = t[:, None] * C + t[None, :]
        tl.store(ones_ptr + square, (t[None, :] >= t[:, None]).to(tl.bfloat16))
        tl.store(ones_ptr + C * C + square, (t[None, :] < t[:, None]).to(tl.bfloat16))
        i, j = (t % 16)[:, None], tl.arange(0, 16)[None, :]
        tl.store(ones_ptr + 2 * C * C + t[:, None] * 16 + j, spans(i, j, (t // 16)[:, None]))
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    # From here on all offsets are within the chunk, and fit into 32 bits.
    chunk, head = (slot * H + h) * (C * D), (first * HQ + h // (H // HQ)) * D
    row, d_in = t < count, d < D
    at, held = t[:, None] * D + d[None, :], used_rows(row, SHORT)[:, None] & d_in[None, :]
    g = tl.zeros([C, BD], dtype=tl.float32)
    if GATE != "none":
        g += rows_at(g_ptr + (first * H + h) * D, t, d, row, H * D, D)
        g = log2_decay(g, 0.0, 0.0, 0.0, GATE)
    G = tl.cumsum(g, axis=0)
    last = tl.sum(tl.where((t == C - 1)[:, None], G, 0.0), axis=0)
    known = stored_rows(t, count, SHORT) | (t == C - 1)
    tl.store(sums_ptr + chunk + at, G, mask=known[:, None] & d_in[None, :])
    tl.store(fall_ptr + (slot * H + h) * D + d, tl.exp2(last), mask=d_in)
    gamma = tl.exp2(G)
    Q = rows_at(q_ptr + head, t, d, row, HQ * D, D) * scale
    tl.store(from_q_ptr + chunk + at, (Q * gamma).to(tl.bfloat16), mask=held)
    K = rows_at(k_ptr + head, t, d, row, HQ * D, D)
    tl.store(from_k_ptr + chunk + at, (K * gamma).to(tl.bfloat16), mask=held)
    to_end = tl.exp2(tl.minimum(last[None, :] - G, 0.0))
    tl.store(to_end_ptr + chunk + at, (K * to_end).to(tl.bfloat16), mask=held)


@triton.jit
def near_scores(QK, KK, q_ptr, k_ptr, sums_ptr, t, d, inside, STRIDE: tl.constexpr, D: tl.constexpr):
    """Adds to QK and KK [B, B] what these channels add to pairs inside of one block, of tokens t."""
    for level in tl.range(0, LEVELS, num_stages=1):
        factor = level_factor(sums_ptr, t, d, level, D)
        K = (rows_at(k_ptr, t, d, inside, STRIDE, D) * factor).to(tl.bfloat16)
        Q = (rows_at(q_ptr, t, d, inside, STRIDE, D) * factor).to(tl.bfloat16)
        pair = pairs(t[:, None], t[None, :], level)
        QK += tl.where(pair, tl.dot(Q, tl.trans(K)), 0.0)
        KK += tl.where(pair, tl.dot(K, tl.trans(K)), 0.0)
    return QK, KK


@triton.jit(do_not_specialize=["num_seqs", "total"])
def scores_kernel(
    q_ptr, k_ptr, cu_seqlens_ptr, sums_ptr, P_ptr, KK_ptr, scale, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head and a block of 16 tokens: their rows of P, in bfloat16, and of KK. Earlier
    blocks are met with a border where this one begins."""
    B: tl.constexpr = 16
    BLOCKS: tl.constexpr = C // B
    block, pair = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    h, slot = pair % H, (pair // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= (block * B if SHORT else 0):  # a slot that no chunk has, or a block without tokens
        return
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HQ + h // (H // HQ)) * D
    sums_ptr += (slot * H + h) * (C * D)
    t, j = block * B + tl.arange(0, B), tl.arange(0, C)
    row, before = t < count, (j < block * B) & (j < count)

    QK = tl.zeros([B, C], dtype=tl.float32)
    KK = tl.zeros([B, C], dtype=tl.float32)
    QK_near = tl.zeros([B, B], dtype=tl.float32)
    KK_near = tl.zeros([B, B], dtype=tl.float32)
    own = tl.zeros([B], dtype=tl.float32)  # a token's own query and key, without a decay in between
    for d_first in tl.range(0, D, BD, num_stages=1):
        d = d_first + tl.arange(0, BD)
        Q, K = rows_at(q_ptr, t, d, row, HQ * D, D), rows_at(k_ptr, t, d, row, HQ * D, D)
        own += tl.sum(Q * K, axis=1)
        G, start = rows_at(sums_ptr, t, d, t >= 0, D, D), row_at(sums_ptr, block * B - 1, d, D)
        decay = tl.minimum(G - start[None, :], 0.0)
        Q, here = (Q * tl.exp2(decay)).to(tl.bfloat16), (K * tl.exp2(decay)).to(tl.bfloat16)
        if block > 0:
            back = tl.minimum(start[None, :] - rows_at(sums_ptr, j, d, before, D, D), 0.0)
            back = (rows_at(k_ptr, j, d, before, HQ * D, D) * tl.exp2(back)).to(tl.bfloat16)
            QK = tl.dot(Q, tl.trans(back), acc=QK)
            KK = tl.dot(here, tl.trans(back), acc=KK)
        if tl.min(tl.min(decay, axis=0), axis=0) >= LASTING:
            back = (K * tl.exp2(-decay)).to(tl.bfloat16)
            QK_near = tl.dot(Q, tl.trans(back), acc=QK_near)
            KK_near = tl.dot(here, tl.trans(back), acc=KK_near)
        else:
            QK_near, KK_near = near_scores(QK_near, KK_near, q_ptr, k_ptr, sums_ptr, t, d, row, HQ * D, D)

    at = (slot * H + h) * (C * C)
    rest = at + t[:, None] * C + j[None, :]
    outside = tl.broadcast_to((j // B != block)[None, :], [B, C])
    tl.store(P_ptr + rest, (QK * scale).to(tl.bfloat16), mask=outside)
    tl.store(KK_ptr + rest, KK, mask=outside)
    near = at + t[:, None] * C + t[None, :]
    diagonal = tl.where(t[:, None] == t[None, :], own[:, None], 0.0)
    QK_near = tl.where(t[:, None] > t[None, :], QK_near, diagonal)
    tl.store(P_ptr + near, (QK_near * scale).to(tl.bfloat16))
    tl.store(KK_ptr + near, KK_near)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def inverse_kernel(
    beta_ptr, cu_seqlens_ptr, KK_ptr, inverse_ptr, num_seqs, total,
    H: tl.constexpr, HAS_BETA: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """M = (I + diag(b) N)^-1 and (I + N diag(b))^-1 = diag(b)^-1 M diag(b), for N = strict_lower(KK): one inverse does
    for both, as no b is 0. `unit_lower_inverse` never looks at the rest."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    at = (slot * H + h) * (C * C) + t[:, None] * C + t[None, :]
    _, b = write_gates(beta_ptr, first * H + h + t * H, t < count, HAS_BETA)
    row = used_rows(t < count, SHORT)[:, None] & (t >= 0)[None, :]
    M = unit_lower_inverse(tl.load(KK_ptr + at, mask=row, other=0.0) * b[:, None], C, 2, "ieee")
    tl.store(inverse_ptr + at, M.to(tl.bfloat16), mask=row)
