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
from products import two_terms


@triton.jit
def spans(i, t, S: tl.constexpr):
    """1 where the decay of token i to or from its border, in blocks of 2 S, has the gate of token t. [.., i, t]

    In an earlier half those behind i, in a later half those up to i; either way within i's half.
    """
    later = i // S % 2 == 1
    return ((i // S == t // S) & (later == (t <= i))).to(tl.bfloat16)


@triton.jit
def sums(chosen, high, low):
    """Sums over the gates that `chosen` has, to 2^-16 of each gate, which comes in two terms."""
    return tl.dot(chosen, high, acc=tl.dot(chosen, low))


@triton.jit
def flat_level(QK, KK, Q, K, high, low, i, j, S: tl.constexpr):
    """Adds to QK and KK [C, C] what these channels add to pairs of blocks of 2 S tokens."""
    factor = tl.exp2(sums(spans(i, j, S), high, low))
    K_at = (K * factor).to(tl.bfloat16)
    Q_at = (Q * factor).to(tl.bfloat16)
    pair = (i // S == j // S + 1) & (i // S % 2 == 1)
    QK += tl.where(pair, tl.dot(Q_at, tl.trans(K_at)), 0.0)
    KK += tl.where(pair, tl.dot(K_at, tl.trans(K_at)), 0.0)
    return QK, KK
