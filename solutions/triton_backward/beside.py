"""dq and dk, with what passes through the states at both ends of a chunk, and the rest of dg."""

import triton
import triton.language as tl
from chunks import sequence_of, start_of, tokens_of
from products import rest_of
from rows import channels_of, rest_at, scaled, state_at, store_channels


@triton.jit(do_not_specialize=["num_seqs", "total"])
def beside_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, initial_ptr, dht_ptr, r_ptr, rest_of_r_ptr, dv_ptr, rest_of_dv_ptr,
    starts_ptr, ends_ptr, decay_ptr, of_scores_ptr, of_keys_ptr, dq_ptr, dk_ptr, sums_ptr, scale,
    num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a key head and a slice of the key channels, and takes the heads that share the key head in
    turn: so dq and dk are sums in one order, and are rounded once."""
    SHARED_V: tl.constexpr = HQ > HK  # GQA: query heads share keys and values
    GROUP: tl.constexpr = H // HK
    SLICES: tl.constexpr = (D + BK - 1) // BK
    part, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    head, slot = pair % HK, (pair // HK).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t, j = tl.arange(0, C), part * BK + tl.arange(0, BK)

    # Rows behind the last sequence belong to none: their gradients are zero.
    behind = slot * C + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros = tl.zeros([C, BK], dtype=tl.float32)
        store_channels(dk_ptr + (slot * C * HK + head) * D, zeros, t, j, none, HK, D)
        for h in range(head * (HQ // HK), (head + 1) * (HQ // HK)):
            store_channels(dq_ptr + (slot * C * HQ + h) * D, zeros, t, j, none, HQ, D)
    if count <= 0:  # a slot that no chunk has
        return

    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    is_first = first == start_of(cu_seqlens_ptr, n, total)
    is_last = first + count == start_of(cu_seqlens_ptr, n + 1, total)
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

    dQ, dK = nothing, nothing
    for h in range(head * GROUP, (head + 1) * GROUP):
        at = slot * H + h
        # dv S and G S share the right operand; K S^T and Q S^T, which the gates need, are their sums with K and Q.
        GS, VS = nothing, nothing
        for i_first in tl.range(0, D, BV, num_stages=STAGES):
            i = i_first + tl.arange(0, BV)
            S = tl.load(
                starts_ptr + at * (D * D) + j[:, None] * D + i[None, :],
                mask=(j < D)[:, None] & (i < D)[None, :], other=0.0,
            )  # fmt: skip
            G = channels_of(do_ptr + h * D, t, i, row, H, D).to(OPERAND)
            dv = channels_of(dv_ptr + h * D, t, i, row, H, D)
            GS = tl.dot(G, tl.trans(S), acc=GS, input_precision=PRECISION)
            VS = tl.dot(dv, tl.trans(S), acc=VS, input_precision=PRECISION)
        if HAS_INITIAL and tl.float32 != OPERAND and is_first:  # the rest of an input that nothing else has rounded
            for i_first in tl.range(0, D, BV, num_stages=1):
                i = i_first + tl.arange(0, BV)
                there = (j < D)[:, None] & (i < D)[None, :]
                S = tl.load(initial_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)
                rest = tl.load(rest_of_dv_ptr + rest_at(n, h, is_last, t, i, H, D, C), mask=(i < D)[None, :], other=0.0)
                VS = tl.dot(rest, tl.trans(S.to(OPERAND)), acc=VS)
                S = rest_of(S, OPERAND)
                GS = tl.dot(channels_of(do_ptr + h * D, t, i, row, H, D), tl.trans(S), acc=GS)
                VS = tl.dot(channels_of(dv_ptr + h * D, t, i, row, H, D), tl.trans(S), acc=VS)
        gamma = tl.load(decay_ptr + at * (4 * C) + t)
        GS = scaled(GS, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED)
        dQ += GS * gamma[:, None]
        dK -= VS * gamma[:, None]
        # By h, or they would be loaded before the loop, and be in the way of the sums.
        K = channels_of(k_ptr + (h // GROUP - head) * D, t, j, row, HK, D)
        VS *= K.to(tl.float32)
        Q = channels_of(q_ptr + h // (H // HQ) * D, t, j, row, HQ, D)
        of_start = tl.sum(GS * Q.to(tl.float32) - VS, axis=1)

        UD = nothing
        for i_first in tl.range(0, D, BV, num_stages=STAGES):
            i = i_first + tl.arange(0, BV)
            dS = tl.load(
                ends_ptr + at * (D * D) + j[:, None] * D + i[None, :],
                mask=(j < D)[:, None] & (i < D)[None, :], other=0.0,
            )  # fmt: skip
            r = channels_of(r_ptr + h * D, t, i, row, H, D)
            UD = tl.dot(r, tl.trans(dS), acc=UD, input_precision=PRECISION)
        if HAS_DHT and tl.float32 != OPERAND and is_last:
            for i_first in tl.range(0, D, BV, num_stages=1):
                i = i_first + tl.arange(0, BV)
                there = (j < D)[:, None] & (i < D)[None, :]
                dS = tl.load(dht_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)
                r = channels_of(r_ptr + h * D, t, i, row, H, D)
                UD = tl.dot(r, tl.trans(rest_of(dS, OPERAND)), acc=UD)
                rest = tl.load(rest_of_r_ptr + rest_at(n, h, is_last, t, i, H, D, C), mask=(i < D)[None, :], other=0.0)
                UD = tl.dot(rest, tl.trans(dS.to(OPERAND)), acc=UD)
        K = channels_of(k_ptr + (h // GROUP - head) * (HK * D), t, j, row, HK, D)
        UD *= tl.load(decay_ptr + at * (4 * C) + 3 * C + t)[:, None]
        of_end = tl.sum(UD * K.to(tl.float32), axis=1)
        dK += UD * tl.load(decay_ptr + at * (4 * C) + 2 * C + t)[:, None]

        sums_at = sums_ptr + (at * SLICES + part) * (2 * C)
        tl.store(sums_at + t, of_start)
        tl.store(sums_at + C + t, of_end)
        if SHARED_V:
            of_scores = tl.load(of_scores_ptr + at * (C * C) + square)
            dQ = tl.dot(of_scores, K.to(OPERAND), acc=dQ, input_precision=PRECISION)
            dK = tl.dot(tl.trans(of_scores), Q.to(OPERAND), acc=dK, input_precision=PRECISION)
            store_channels(dq_ptr + h * D, dQ, t, j, row, HQ, D)
            dQ = nothing

    K = channels_of(k_ptr, t, j, row, HK, D).to(OPERAND)
    if not SHARED_V:
        Q = channels_of(q_ptr + head * D, t, j, row, HQ, D).to(OPERAND)
        of_scores = tl.load(of_scores_ptr + (slot * HK + head) * (C * C) + square)
        dQ = tl.dot(of_scores, K, acc=dQ, input_precision=PRECISION)
        dK = tl.dot(tl.trans(of_scores), Q, acc=dK, input_precision=PRECISION)
        store_channels(dq_ptr + head * D, dQ, t, j, row, HQ, D)
    of_keys = tl.load(of_keys_ptr + (slot * HK + head) * (C * C) + square)
    dK = tl.dot(of_keys, K, acc=dK, input_precision=PRECISION)
    store_channels(dk_ptr, dK, t, j, row, HK, D)
