"""Products of queries and keys with a decay of each channel between them, without a quotient.

Between token j and a later token i channel c decays by exp(g_{j+1,c} + .. + g_{i,c}). The usual way multiplies q_i by
exp(G_i) and k_j by exp(-G_j), G the sum from the chunk's start; exp(-G_j) overflows. Here every pair has a border
between its two tokens. Blocks of 2 s tokens, s = 1, 2, .. C / 2, have their border in the middle: a token of the later
half decays from the border on, one of the earlier half up to the border. Both are factors of at most 1, and each pair
j < i meets in exactly one block. What underflows is less than 2^-126 of its term.

The exponents are sums of the gates that they span, made by products with matrices of zeros and ones. Nothing is ever
subtracted, so there is no cancellation, and a reset needs no care.
"""

import triton
import triton.language as tl


@triton.jit
def spans(i, t, level):
    """1 where the decay of token i to or from its border, in blocks of 2 S tokens, S = 2^level, has token t's gate.

    In an earlier half those behind i, in a later half those up to i; either way within i's half. [.., i, t]
    """
    later = (i >> level) % 2 == 1
    return ((i >> level == t >> level) & (later == (t <= i))).to(tl.bfloat16)


@triton.jit
def sums(chosen, high, low):
    """Sums over the gates that `chosen` has, to 2^-16 of each gate, which comes in two terms."""
    return tl.dot(chosen, high, acc=tl.dot(chosen, low))


@triton.jit
def pairs(i, j, level):
    """Where token i is in the later half of a block of 2 S, and j in the earlier half of the same."""
    return (i >> level == (j >> level) + 1) & ((i >> level) % 2 == 1)


@triton.jit
def flat_scores(QK, KK, Q, K, high, low, i, j, level, lasting):
    """Adds to QK and KK [C, C] what these channels add to pairs of blocks of 2 S tokens. What else it adds is for pairs
    that meet elsewhere; none where there is but one block.

    Of `lasting` channels, of which none decays below 2^-64 in the chunk: what they add below the diagonal and on it.
    """
    later = ((i >> level) % 2 == 1) | lasting
    early = ((i >> level) % 2 == 0) | lasting
    chosen = tl.where(lasting, (i >= j).to(tl.bfloat16), spans(i, j, level))
    decay = sums(chosen, high, low)
    factor = tl.exp2(decay)
    back = tl.where(early, K.to(tl.float32) * tl.exp2(tl.where(lasting, -decay, decay)), 0.0)
    back = tl.trans(back.to(tl.bfloat16))
    QK = tl.dot(tl.where(later, Q.to(tl.float32) * factor, 0.0).to(tl.bfloat16), back, acc=QK)
    KK = tl.dot(tl.where(later, K.to(tl.float32) * factor, 0.0).to(tl.bfloat16), back, acc=KK)
    return QK, KK


@triton.jit
def small_level(QK, KK, Q, K, high, low, level, N: tl.constexpr, B: tl.constexpr):
    """The same inside of N blocks of B tokens side by side: all are [N, B, ..]."""
    i, j = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    factor = tl.exp2(sums(tl.broadcast_to(spans(i, j, level), [N, B, B]), high, low))
    K_at = (K.to(tl.float32) * factor).to(tl.bfloat16)
    Q_at = (Q.to(tl.float32) * factor).to(tl.bfloat16)
    across = tl.permute(K_at, (0, 2, 1))
    pair = pairs(i, j, level)
    QK += tl.where(pair, tl.dot(Q_at, across), 0.0)
    KK += tl.where(pair, tl.dot(K_at, across), 0.0)
    return QK, KK


@triton.jit
def near_scores(QK, KK, Q, K, high, low, N: tl.constexpr, B: tl.constexpr):
    """Adds to QK and KK [N, B, B], below the diagonal, what these channels add inside of N blocks of B tokens.

    Where no channel of any block decays below 2^-64 a quotient overflows for no key below 2^63, and loses nothing: one
    product for each, instead of one for each level.
    """
    i, j = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    decay = sums(tl.broadcast_to((i >= j).to(tl.bfloat16), [N, B, B]), high, low)
    if tl.min(decay) >= -64.0:
        factor = tl.exp2(decay)
        across = tl.permute((K.to(tl.float32) * tl.exp2(-decay)).to(tl.bfloat16), (0, 2, 1))
        QK = tl.dot((Q.to(tl.float32) * factor).to(tl.bfloat16), across, acc=QK)
        KK = tl.dot((K.to(tl.float32) * factor).to(tl.bfloat16), across, acc=KK)
    else:
        for level in tl.range(0, 4, num_stages=1):
            QK, KK = small_level(QK, KK, Q, K, high, low, level, N, B)
    return QK, KK
