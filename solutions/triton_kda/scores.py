"""Products of queries and keys with a decay of each channel between them, of channels that forget.

Between token j and a later token i channel c decays by exp(g_{j+1,c} + .. + g_{i,c}). The usual way multiplies q_i by
exp(G_i) and k_j by exp(-G_j), G the sum from the chunk's start; exp(-G_j) overflows. Here every pair has a border
between its two tokens, and the later token decays from the border on, the earlier one up to it. Both are factors of at
most 1. What underflows is less than 2^-126 of its term.

far_scores: pairs in different blocks of 16 tokens. The border is where the later token's block begins.
near_scores: pairs in one block. Blocks of 2 s tokens, s = 1, 2, 4, 8, have their border in the middle, and each pair
meets in exactly one of them; or, where no channel of any block decays below 2^-64, a quotient is safe.
"""

import triton
import triton.language as tl
from products import two_terms


@triton.jit
def far_scores(QK, KK, Q, K, g, G, i, N: tl.constexpr, B: tl.constexpr):
    """Adds to QK and KK [C, C] what these channels add to pairs in different blocks.

    Sums within blocks are taken anew, for differences of G would cancel after a reset; in exponents that reach over
    blocks, of magnitudes up to 64 times LEAST, what cancels is within bfloat16.
    """
    C: tl.constexpr = N * B
    D: tl.constexpr = Q.shape[1]
    local = tl.reshape(tl.cumsum(tl.reshape(g, [N, B, D]), axis=1), [C, D])
    factor = tl.exp2(local)
    Q_at, K_at = (Q * factor).to(tl.bfloat16), (K * factor).to(tl.bfloat16)
    for block in tl.range(1, N, num_stages=1):
        before = i < block * B
        border = tl.sum(tl.where(i == block * B - 1, G, 0.0), axis=0)
        decay = tl.minimum(border[None, :] - G, 0.0)
        back = tl.trans(tl.where(before, K * tl.exp2(decay), 0.0).to(tl.bfloat16))
        here = i // B == block
        QK = tl.dot(tl.where(here, Q_at, 0.0), back, acc=QK)
        KK = tl.dot(tl.where(here, K_at, 0.0), back, acc=KK)
    return QK, KK


@triton.jit
def near_scores(QK, KK, Q, K, g, GUARD: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """Adds to QK and KK [N, B, B], below the diagonal, what these channels add inside of N blocks of B tokens."""
    D: tl.constexpr = Q.shape[1]
    gs = tl.reshape(g, [N, B, D])
    decay = tl.cumsum(gs, axis=1)
    Qs, Ks = tl.reshape(Q, [N, B, D]), tl.reshape(K, [N, B, D])
    safe = False
    if GUARD:
        safe = tl.min(decay) >= -64.0
    if safe:
        factor = tl.exp2(decay)
        across = tl.permute((Ks * tl.exp2(-decay)).to(tl.bfloat16), (0, 2, 1))
        QK = tl.dot((Qs * factor).to(tl.bfloat16), across, acc=QK)
        KK = tl.dot((Ks * factor).to(tl.bfloat16), across, acc=KK)
    else:
        high, low = two_terms(gs)
        for level in tl.range(0, 4, num_stages=1):
            QK, KK = small_level(QK, KK, Qs, Ks, high, low, level, N, B)
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
