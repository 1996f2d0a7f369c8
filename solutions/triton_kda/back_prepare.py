"""What the backward pass needs of all chunks at once, before any state is known: decays, scores, inverses."""

import triton
import triton.language as tl
from borders import LASTING, row_at, rows_at
from chunks import known_tokens, tokens_of
from gates import log2_decay
from inverse import unit_lower_inverse
from products import two_terms
from scores import spans

LEAST: tl.constexpr = tl.constexpr(2.0**-40)  # beside an error of its size a write is nothing in float32
SAFE: tl.constexpr = tl.constexpr(-70.0)  # the exponent of one factor of a quotient inside of a block


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
    q_ptr, k_ptr, g_ptr, cu_seqlens_ptr, sums_ptr, from_q_ptr, from_k_ptr, to_end_ptr, fall_ptr, ones_ptr,
    chunks_ptr, scale, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head and some channels: sums of gates, in float32; scale gamma * Q, gamma * K and
    Gamma_C,: * K; and gamma_C. The first program makes tables of ones: two of [C, C], on and above the diagonal, and
    below it; and one of [16, 16] for each level, which says whose gates are in a token's decay to its border. The first
    program of each chunk writes where the chunk begins, and how many tokens it has.
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
    if tl.program_id(0) % (SLICES * H) == 0:
        tl.store(chunks_ptr + 2 * slot, first)
        tl.store(chunks_ptr + 2 * slot + 1, count.to(tl.int64))
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
def level_exponent(high, low, spans_ptr, level, N: tl.constexpr):
    """The exponent of the decay between each token of a block and its border, a product of gates: [N, BD]."""
    chosen = tl.load(spans_ptr + level * (N * N) + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    return tl.dot(chosen, high, acc=tl.dot(chosen, low))


@triton.jit
def add_level(QK, KK, Q, K, exponent, level, N: tl.constexpr):
    """Adds to QK and KK [N, N] what pairs have that meet at a level."""
    factor = tl.exp2(exponent)
    Q_at, K_at = (Q * factor).to(tl.bfloat16), (K * factor).to(tl.bfloat16)
    here = (tl.arange(0, N)[:, None] ^ tl.arange(0, N)[None, :]) >> level == 1
    QK += tl.where(here, tl.dot(Q_at, tl.trans(K_at)), 0.0)
    KK += tl.where(here, tl.dot(K_at, tl.trans(K_at)), 0.0)
    return QK, KK


@triton.jit
def add_quotient(QK, KK, Q, K, exponent, level, N: tl.constexpr):
    """Adds what pairs have that meet at a level or below it, by one quotient. Other pairs may overflow, and a token
    with a later one; nobody looks at them."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    exponent = tl.where((i >> level) % 2 == 1, exponent, -exponent)
    factor = tl.exp2(exponent)
    back = tl.trans((K * tl.exp2(-exponent)).to(tl.bfloat16))
    here = ((i ^ j) >> level <= 1) & (i > j)
    QK += tl.where(here, tl.dot((Q * factor).to(tl.bfloat16), back), 0.0)
    KK += tl.where(here, tl.dot((K * factor).to(tl.bfloat16), back), 0.0)
    return QK, KK


@triton.jit
def add_inside(QK, KK, Q, K, g, spans_ptr):
    """Adds to QK and KK [N, N] what these channels add to pairs inside of one block. Where they decay by no more than
    2^SAFE between a border and the tokens of its level, one quotient serves this level and those below."""
    N: tl.constexpr = Q.shape[0]
    high, low = two_terms(g)
    exponent = level_exponent(high, low, spans_ptr, 3, N)
    if tl.min(tl.min(exponent, axis=0), axis=0) >= SAFE:
        QK, KK = add_quotient(QK, KK, Q, K, exponent, 3, N)
    else:
        QK, KK = add_level(QK, KK, Q, K, exponent, 3, N)
        exponent = level_exponent(high, low, spans_ptr, 2, N)
        if tl.min(tl.min(exponent, axis=0), axis=0) >= SAFE:
            QK, KK = add_quotient(QK, KK, Q, K, exponent, 2, N)
        else:
            QK, KK = add_level(QK, KK, Q, K, exponent, 2, N)
            for level in tl.range(0, 2, num_stages=1):
                QK, KK = add_level(QK, KK, Q, K, level_exponent(high, low, spans_ptr, level, N), level, N)
    return QK, KK


@triton.jit
def add_earlier(QK, KK, Q, K, k_ptr, sums_ptr, start, e, d, STRIDE: tl.constexpr, D: tl.constexpr):
    """Adds to QK and KK what decayed rows Q and K have with the tokens e of an earlier block."""
    back = tl.exp2(tl.minimum(start[None, :] - rows_at(sums_ptr, e, d, e >= 0, D, D), 0.0))
    back = tl.trans((rows_at(k_ptr, e, d, e >= 0, STRIDE, D) * back).to(tl.bfloat16))
    return tl.dot(Q, back, acc=QK), tl.dot(K, back, acc=KK)


@triton.jit
def store_scores(P_ptr, KK_ptr, QK, KK, scale, t, e, C: tl.constexpr):
    """Rows t and columns e [16, 16] of P = scale QK and of KK."""
    tl.store(P_ptr + t[:, None] * C + e[None, :], (QK * scale).to(tl.bfloat16))
    tl.store(KK_ptr + t[:, None] * C + e[None, :], KK)


@triton.jit
def scores_kernel(
    q_ptr, k_ptr, chunks_ptr, sums_ptr, ones_ptr, P_ptr, KK_ptr, scale,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head and a block of 16 tokens: their rows of P, in bfloat16, and of KK. Earlier
    blocks are met with a border where this one begins. It is one warp: products are of 16 rows and columns, and several
    warps would each make the same operands."""
    B: tl.constexpr = 16
    BLOCKS: tl.constexpr = C // B
    tl.static_assert(BLOCKS == 4)
    block, pair = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    h, slot = pair % H, (pair // H).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    if count <= (block * B if SHORT else 0):  # a slot that no chunk has, or a block without tokens
        return
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HQ + h // (H // HQ)) * D
    sums_ptr += (slot * H + h) * (C * D)
    P_ptr += (slot * H + h) * (C * C)
    KK_ptr += (slot * H + h) * (C * C)
    r = tl.arange(0, B)
    t = block * B + r
    row = t < count

    QK, KK = tl.zeros([B, B], dtype=tl.float32), tl.zeros([B, B], dtype=tl.float32)
    own = tl.zeros([B], dtype=tl.float32)  # a token's own query and key, without a decay in between
    if block * B < count:
        for d_first in tl.range(0, D, BD, num_stages=1):
            d = d_first + tl.arange(0, BD)
            Q, K = rows_at(q_ptr, t, d, row, HQ * D, D), rows_at(k_ptr, t, d, row, HQ * D, D)
            own += tl.sum(Q * K, axis=1)
            G, start = rows_at(sums_ptr, t, d, t >= 0, D, D), row_at(sums_ptr, block * B - 1, d, D)
            decay = tl.minimum(G - start[None, :], 0.0)
            if tl.min(tl.min(decay, axis=0), axis=0) >= LASTING:
                Q_at, K_at = (Q * tl.exp2(decay)).to(tl.bfloat16), (K * tl.exp2(decay)).to(tl.bfloat16)
                back = tl.trans((K * tl.exp2(-decay)).to(tl.bfloat16))
                QK = tl.dot(Q_at, back, acc=QK)
                KK = tl.dot(K_at, back, acc=KK)
            else:
                g = G - rows_at(sums_ptr, t - 1, d, t > 0, D, D)
                QK, KK = add_inside(QK, KK, Q, K, g, ones_ptr + 2 * C * C)
    diagonal = tl.where(r[:, None] == r[None, :], own[:, None], 0.0)
    store_scores(P_ptr, KK_ptr, tl.where(r[:, None] > r[None, :], QK, diagonal), KK, scale, t, t, C)

    # Loops of their own: so fewer sums are in registers at once.
    QK_0, KK_0 = tl.zeros([B, B], dtype=tl.float32), tl.zeros([B, B], dtype=tl.float32)
    QK_1, KK_1 = tl.zeros([B, B], dtype=tl.float32), tl.zeros([B, B], dtype=tl.float32)
    QK_2, KK_2 = tl.zeros([B, B], dtype=tl.float32), tl.zeros([B, B], dtype=tl.float32)
    if block * B < count:
        for d_first in tl.range(0, D if block > 0 else 0, BD, num_stages=1):
            d = d_first + tl.arange(0, BD)
            start = row_at(sums_ptr, block * B - 1, d, D)
            decay = tl.exp2(tl.minimum(rows_at(sums_ptr, t, d, t >= 0, D, D) - start[None, :], 0.0))
            Q = (rows_at(q_ptr, t, d, row, HQ * D, D) * decay).to(tl.bfloat16)
            K = (rows_at(k_ptr, t, d, row, HQ * D, D) * decay).to(tl.bfloat16)
            QK_0, KK_0 = add_earlier(QK_0, KK_0, Q, K, k_ptr, sums_ptr, start, r, d, HQ * D, D)
            if block > 1:
                QK_1, KK_1 = add_earlier(QK_1, KK_1, Q, K, k_ptr, sums_ptr, start, B + r, d, HQ * D, D)
            if block > 2:
                QK_2, KK_2 = add_earlier(QK_2, KK_2, Q, K, k_ptr, sums_ptr, start, 2 * B + r, d, HQ * D, D)
    if block != 0:
        store_scores(P_ptr, KK_ptr, QK_0, KK_0, scale, t, r, C)
    if block != 1:
        store_scores(P_ptr, KK_ptr, QK_1, KK_1, scale, t, B + r, C)
    if block != 2:
        store_scores(P_ptr, KK_ptr, QK_2, KK_2, scale, t, 2 * B + r, C)
    if block != 3:
        zeros = tl.zeros([B, B], dtype=tl.float32)
        store_scores(P_ptr, KK_ptr, zeros, zeros, scale, t, 3 * B + r, C)


@triton.jit
def inverse_kernel(
    beta_ptr, chunks_ptr, KK_ptr, inverse_ptr,
    H: tl.constexpr, HAS_BETA: tl.constexpr, SHORT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """M = (I + diag(b) N)^-1 and (I + N diag(b))^-1 = diag(b)^-1 M diag(b), for N = strict_lower(KK): one inverse does
    for both, as no b is 0. `unit_lower_inverse` never looks at the rest."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    at = (slot * H + h) * (C * C) + t[:, None] * C + t[None, :]
    _, b = write_gates(beta_ptr, first * H + h + t * H, t < count, HAS_BETA)
    row = used_rows(t < count, SHORT)[:, None] & (t >= 0)[None, :]
    M = unit_lower_inverse(tl.load(KK_ptr + at, mask=row, other=0.0) * b[:, None], C, 2, "ieee")
    tl.store(inverse_ptr + at, M.to(tl.bfloat16), mask=row)
