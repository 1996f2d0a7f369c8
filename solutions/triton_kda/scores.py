"""Products of queries and keys with a decay of each channel between them, of channels that forget.

Between token j and a later token i channel c decays by exp(g_{j+1,c} + .. + g_{i,c}). The usual way multiplies q_i by
exp(G_i) and k_j by exp(-G_j), G the sum from the chunk's start; exp(-G_j) overflows. Here a pair has a border. Where it
is between the two tokens, the later one decays from it on, the earlier one up to it. Both are factors of at most 1, and
what underflows is less than 2^-126 of its term.

parted_scores: channels that decay by no more than 2^-70 over 8, 16 or 32 tokens. So many before and behind a border are
a part of the chunk, in which a quotient is safe.
far_scores: the others, pairs in different blocks of 16 tokens. The border is in the middle of the chunk, or of a half.
near_scores: the others, pairs in one block. Blocks of 2 s tokens, s = 1, 2, 4, 8, have their border in the middle, and
each pair meets in exactly one of them. Where channels decay by no more than 2^-70 over 2 or 4 tokens, one quotient
serves all pairs in blocks of twice as many.
"""

import triton
import triton.language as tl
from products import two_terms


@triton.jit
def parted_scores(QK, KK, Q, K, G, i, parts, C: tl.constexpr):
    """Adds to QK and KK [C, C] what these channels add to all pairs, by parts of the chunk, a power of two of them.

    Later tokens are those of a part, and earlier ones all up to its end, with the border in the middle of the part. On
    the other side of it a factor is a quotient, 2^70 at most. What a token has with a later one may overflow; nobody
    looks at it.
    """
    size = C // parts
    for part in tl.range(0, parts, num_stages=1):
        start = part * size
        border = tl.sum(tl.where(i == start + size // 2 - 1, G, 0.0), axis=0)[None, :]
        here, known = (i >= start) & (i < start + size), i < start + size
        back = tl.trans(tl.where(known, K * tl.exp2(border - G), 0.0).to(tl.bfloat16))
        factor = tl.where(here, tl.exp2(G - border), 0.0)
        QK = tl.dot((Q * factor).to(tl.bfloat16), back, acc=QK)
        KK = tl.dot((K * factor).to(tl.bfloat16), back, acc=KK)
    return QK, KK


@triton.jit
def far_scores(QK, KK, Q, K, G, i, j, C: tl.constexpr):
    """Adds to QK and KK [C, C] what these channels add to pairs in different blocks of 16: those in different halves of
    the chunk, with the border in the middle, then those in different halves of a half.

    Exponents are differences of G, of magnitudes up to 64 times LEAST: what cancels is within bfloat16.
    """
    for level in tl.range(4, 6, num_stages=1):
        later = (i >> level) % 2 == 1
        middle = tl.sum(tl.where(i == C // 2 - 1, G, 0.0), axis=0)[None, :]
        if level == 4:
            low = tl.sum(tl.where(i == C // 4 - 1, G, 0.0), axis=0)[None, :]
            high = tl.sum(tl.where(i == C // 4 * 3 - 1, G, 0.0), axis=0)[None, :]
            border = tl.where(i < C // 2, low, high)
        else:
            border = tl.broadcast_to(middle, G.shape)
        factor = tl.exp2(-tl.abs(G - border))
        back = tl.trans(tl.where(later, 0.0, K * factor).to(tl.bfloat16))
        pair = i >> (level + 1) == j >> (level + 1)
        QK += tl.where(pair, tl.dot(tl.where(later, Q * factor, 0.0).to(tl.bfloat16), back), 0.0)
        KK += tl.where(pair, tl.dot(tl.where(later, K * factor, 0.0).to(tl.bfloat16), back), 0.0)
    return QK, KK


@triton.jit
def near_scores(QK, KK, Q, K, g, safe, N: tl.constexpr, B: tl.constexpr):
    """Adds to QK and KK [N, B, B], below the diagonal, what these channels add inside of N blocks of B tokens.

    In blocks of 2^safe tokens one quotient serves all pairs, if `safe` is not 0.
    """
    D: tl.constexpr = Q.shape[1]
    gs = tl.reshape(g, [N, B, D])
    Qs, Ks = tl.reshape(Q, [N, B, D]), tl.reshape(K, [N, B, D])
    high, low = two_terms(gs)
    if safe > 0:
        QK, KK = quotients(QK, KK, Qs, Ks, high, low, safe, N, B)
    for level in tl.range(safe, 4, num_stages=1):
        QK, KK = small_level(QK, KK, Qs, Ks, high, low, level, N, B)
    return QK, KK


@triton.jit
def quotients(QK, KK, Q, K, high, low, log_size, N: tl.constexpr, B: tl.constexpr):
    """Of pairs in blocks of 2^log_size tokens. All are [N, B, ..].

    Their border is in the middle of the block, and exponents are sums of gates from there, with either sign. What a
    token has with a later one may overflow; nobody looks at it.
    """
    i, j = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    chosen = tl.broadcast_to(spans(i, j, log_size - 1) * tl.where((i >> (log_size - 1)) % 2 == 1, 1.0, -1.0), [N, B, B])
    exponent = tl.dot(chosen.to(tl.bfloat16), high, acc=tl.dot(chosen.to(tl.bfloat16), low))
    factor = tl.exp2(exponent)
    K_at, Q_at = (K * factor).to(tl.bfloat16), (Q * factor).to(tl.bfloat16)
    across = tl.permute((K * tl.exp2(-exponent)).to(tl.bfloat16), (0, 2, 1))
    pair = i >> log_size == j >> log_size
    QK += tl.where(pair, tl.dot(Q_at, across), 0.0)
    KK += tl.where(pair, tl.dot(K_at, across), 0.0)
    return QK, KK


@triton.jit
def small_level(QK, KK, Q, K, high, low, level, N: tl.constexpr, B: tl.constexpr):
    """Of pairs that meet in blocks of 2 S tokens, S = 2^level. All are [N, B, ..].

    Exponents are products of the gates, in two terms, with a matrix of zeros and ones: nothing is subtracted.
    """
    i, j = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    chosen = tl.broadcast_to(spans(i, j, level), [N, B, B])
    factor = tl.exp2(tl.dot(chosen, high, acc=tl.dot(chosen, low)))
    K_at, Q_at = (K * factor).to(tl.bfloat16), (Q * factor).to(tl.bfloat16)
    across = tl.permute(K_at, (0, 2, 1))
    pair = (i >> level == (j >> level) + 1) & ((i >> level) % 2 == 1)  # in halves of the same block
    QK += tl.where(pair, tl.dot(Q_at, across), 0.0)
    KK += tl.where(pair, tl.dot(K_at, across), 0.0)
    return QK, KK


@triton.jit
def spans(i, t, level):
    """1 where the decay of token i to or from its border, in blocks of 2 S tokens, has token t's gate.

    In an earlier half those behind i, in a later half those up to i; either way within i's half. [.., i, t]
    """
    later = (i >> level) % 2 == 1
    return ((i >> level == t >> level) & (later == (t <= i))).to(tl.bfloat16)
