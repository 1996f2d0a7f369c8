"""dq and dk, with what passes through the states at both ends of a chunk, and sums for the rest of dg."""

import triton
import triton.language as tl
from chunks import start_of, tokens_of
from rows import channels_of, scaled, store_channels


@triton.jit
def zeros_behind(slot, head, part, t, j, none, dq_ptr, dk_ptr, HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr,
                 C: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Rows behind the last sequence belong to none: their gradients are zero."""
    zeros = tl.zeros([C, BK], dtype=tl.float32)
    store_channels(dk_ptr + (slot * C * HK + head) * D, zeros, t, j, none, HK, D)
    for h in range(head * (HQ // HK), (head + 1) * (HQ // HK)):
        store_channels(dq_ptr + (slot * C * HQ + h) * D, zeros, t, j, none, HQ, D)


@triton.jit
def rows_times(
    x_ptr, state_ptr, t, j, row, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Rows times the state of a chunk, over all value channels: [C, BK]."""
    X = tl.zeros([C, BK], dtype=tl.float32)
    for i_first in tl.static_range(0, D, BV):
        i = i_first + tl.arange(0, BV)
        S = tl.load(state_ptr + j[:, None] * D + i[None, :], mask=(j < D)[:, None] & (i < D)[None, :], other=0.0)
        X = tl.dot(channels_of(x_ptr, t, i, row, H, D).to(OPERAND), tl.trans(S), acc=X, input_precision=PRECISION)
    return X


@triton.jit(do_not_specialize=["num_seqs", "total"])
def beside_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr, decay_ptr, of_scores_ptr, of_keys_ptr,
    dq_ptr, dk_ptr, sums_ptr, scale, num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a key head and a slice of the key channels, and takes the heads that share the key head in
    turn, for dq and then for dk: so both are sums in one order, and are rounded once."""
    SHARED_V: tl.constexpr = HQ > HK  # GQA: query heads share keys and values
    GROUP: tl.constexpr = H // HK
    SLICES: tl.constexpr = (D + BK - 1) // BK
    part, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    head, slot = pair % HK, (pair // HK).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t, j = tl.arange(0, C), part * BK + tl.arange(0, BK)
    behind = slot * C + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros_behind(slot, head, part, t, j, none, dq_ptr, dk_ptr, HQ, HK, D, C, BK)
    if count <= 0:  # a slot that no chunk has
        return

    q_ptr += first * HQ * D
    k_ptr += (first * HK + head) * D
    dq_ptr += first * HQ * D
    dk_ptr += (first * HK + head) * D
    do_ptr += first * H * D
    r_ptr += first * H * D
    dv_ptr += first * H * D
    row = t < count
    square = t[:, None] * C + t[None, :]
    nothing = tl.zeros([C, BK], dtype=tl.float32)

    # K S^T and Q S^T, which the gates need, are sums of dv S and G S with K and Q. Keys and queries are loaded by h, or
    # they would be loaded before the loops, and be in the way of the sums.
    dQ = nothing
    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=STAGES):
        at = slot * H + h
        X = rows_times(
            do_ptr + h * D, starts_ptr + at * (D * D), t, j, row, H, D, OPERAND, PRECISION, C, BK, BV
        )  # fmt: skip
        X = scaled(X, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED)
        Q = channels_of(q_ptr + h // (H // HQ) * D, t, j, row, HQ, D)
        tl.store(sums_ptr + (at * SLICES + part) * (4 * C) + t, tl.sum(X * Q.to(tl.float32), axis=1))
        dQ += X * tl.load(decay_ptr + at * (4 * C) + t)[:, None]
        of_scores = tl.load(of_scores_ptr + at * (C * C) + square)
        K = channels_of(k_ptr + (h // GROUP - head) * D, t, j, row, HK, D).to(OPERAND)
        dQ = tl.dot(of_scores, K, acc=dQ, input_precision=PRECISION)
        if SHARED_V:
            store_channels(dq_ptr + h * D, dQ, t, j, row, HQ, D)
            dQ = nothing
    if not SHARED_V:
        store_channels(dq_ptr + head * D, dQ, t, j, row, HQ, D)

    dK = nothing
    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=STAGES):
        at = slot * H + h
        sums_at = sums_ptr + (at * SLICES + part) * (4 * C)
        through = 0.0
        for i_first in tl.static_range(0, D, BV):
            i = i_first + tl.arange(0, BV)
            state, there = at * (D * D) + j[:, None] * D + i[None, :], (j < D)[:, None] & (i < D)[None, :]
            S = tl.load(starts_ptr + state, mask=there, other=0.0).to(tl.float32)
            dS = tl.load(ends_ptr + state, mask=there, other=0.0).to(tl.float32)
            through += tl.sum(tl.sum(S * dS, axis=1), axis=0)
        tl.store(sums_at + 3 * C, through)
        X = rows_times(
            dv_ptr + h * D, starts_ptr + at * (D * D), t, j, row, H, D, OPERAND, PRECISION, C, BK, BV
        )  # fmt: skip
        K = channels_of(k_ptr + (h // GROUP - head) * D, t, j, row, HK, D)
        tl.store(sums_at + C + t, tl.sum(X * K.to(tl.float32), axis=1))
        dK -= X * tl.load(decay_ptr + at * (4 * C) + t)[:, None]

    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=STAGES):
        at = slot * H + h
        sums_at = sums_ptr + (at * SLICES + part) * (4 * C)
        X = rows_times(
            r_ptr + h * D, ends_ptr + at * (D * D), t, j, row, H, D, OPERAND, PRECISION, C, BK, BV
        )  # fmt: skip
        X *= tl.load(decay_ptr + at * (4 * C) + 3 * C + t)[:, None]
        K = channels_of(k_ptr + (h // GROUP - head) * D, t, j, row, HK, D)
        tl.store(sums_at + 2 * C + t, tl.sum(X * K.to(tl.float32), axis=1))
        dK += X * tl.load(decay_ptr + at * (4 * C) + 2 * C + t)[:, None]
        of_scores = tl.load(of_scores_ptr + at * (C * C) + square)
        of_keys = tl.load(of_keys_ptr + at * (TERMS * C * C) + square)
        Q = channels_of(q_ptr + h // (H // HQ) * D, t, j, row, HQ, D).to(OPERAND)
        dK = tl.dot(tl.trans(of_scores), Q, acc=dK, input_precision=PRECISION)
        dK = tl.dot(of_keys, K.to(OPERAND), acc=dK, input_precision=PRECISION)
        dK = tl.dot(tl.trans(of_keys), K.to(OPERAND), acc=dK, input_precision=PRECISION)
    store_channels(dk_ptr, dK, t, j, row, HK, D)
