"""dq and dk of all chunks at once, and sums for dg.

All operands are loaded: the left operand of a wgmma is not to come from registers (README).
"""

import triton
import triton.language as tl
from chunks import chunk_of_part, start_of, tokens_of
from edges import product_with_rest
from rows import channels_of, scaled, store_channels, there_are, triangle


@triton.jit
def zeros_behind(chunk, head, t, j, none, dq_ptr, dk_ptr, dv_ptr, HQ: tl.constexpr, HK: tl.constexpr,
                 HV: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Rows behind the last sequence belong to none: their gradients are zero."""
    zeros = tl.zeros([C, BK], dtype=tl.float32)
    store_channels(dk_ptr + (chunk * C * HK + head) * D, zeros, t, j, none, HK, D)
    for h in range(head * (HQ // HK), (head + 1) * (HQ // HK)):
        store_channels(dq_ptr + (chunk * C * HQ + h) * D, zeros, t, j, none, HQ, D)
    for h in range(head * (HV // HK), (head + 1) * (HV // HK)):
        store_channels(dv_ptr + (chunk * C * HV + h) * D, zeros, t, j, none, HV, D)


@triton.jit
def through_states(
    dQ, dK, k_at, q_at, do_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr, decay_ptr, sums_ptr, scale, norm_ptr, norm_at,
    slot, end, head, t, j, row, part,
    NORMED: tl.constexpr, HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BV: tl.constexpr, HEADS: tl.constexpr, SLICES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """What passes through the states: of HEADS heads from `head` on, which share a sum, all value channels, BV at a
    time. Added to dQ and dK of the key channels j."""
    TURNS: tl.constexpr = (D + BV - 1) // BV
    keys = row[:, None] & there_are(j, D)[None, :]
    Q = tl.load(q_at + head // (H // HQ) * D, mask=keys, other=0.0)  # one query for all of HEADS
    K = tl.load(k_at, mask=keys, other=0.0)
    for turn in tl.range(0, HEADS * TURNS, num_stages=STAGES, disable_licm=True):
        h, i = head + turn // TURNS, turn % TURNS * BV + tl.arange(0, BV)
        at = slot * H + h
        state, there = j[:, None] * D + i[None, :], there_are(j, D)[:, None] & there_are(i, D)[None, :]
        values, inside = h * D + t[:, None] * (H * D) + i[None, :], row[:, None] & there_are(i, D)[None, :]
        S = tl.load(starts_ptr + at * (D * D) + state, mask=there, other=0.0)
        dS = tl.load(ends_ptr + (end * H + h) * (D * D) + state, mask=there, other=0.0)
        G = tl.load(do_ptr + values, mask=inside, other=0.0).to(OPERAND)
        dV, r = tl.load(dv_ptr + values, mask=inside, other=0.0), tl.load(r_ptr + values, mask=inside, other=0.0)
        decay = decay_ptr + at * (8 * C) + t
        gamma, written = tl.load(decay), tl.load(decay + 7 * C)
        # Q S^T and K S^T, which the gates need, are sums of G S and dV S with Q and K.
        X = scaled(tl.dot(G, tl.trans(S), input_precision=PRECISION), scale, norm_ptr, norm_at + h // (H // HQ), row,
                   NORMED)  # fmt: skip
        of_start = tl.sum(X * Q.to(tl.float32), axis=1)
        dQ += X * gamma[:, None]
        X = tl.dot(dV, tl.trans(S), input_precision=PRECISION)
        of_start -= tl.sum(X * K.to(tl.float32), axis=1)
        dK -= X * gamma[:, None]
        X = tl.dot(r, tl.trans(dS), input_precision=PRECISION)
        of_end = tl.sum(X * K.to(tl.float32), axis=1) * tl.load(decay + 3 * C)
        dK += X * written[:, None]
        through = tl.sum(tl.sum(S.to(tl.float32) * dS.to(tl.float32), axis=1), axis=0)
        sums = sums_ptr + ((at * SLICES + part) * TURNS + turn % TURNS) * (2 * C + 4)
        tl.store(sums + t, of_start)
        tl.store(sums + C + t, of_end)
        tl.store(sums + 2 * C, through)
    return dQ, dK


@triton.jit
def between_tokens(
    dQ, dK, k_at, q_at, of_scores_ptr, of_keys_ptr, slot, head, t, j, row,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, HEADS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same for what passes between tokens, by the gradients of Q K^T and K K^T."""
    places, below = triangle(t, C)
    keys = row[:, None] & there_are(j, D)[None, :]
    for turn in tl.range(0, HEADS, num_stages=STAGES):
        h = head + turn
        triangles = (slot * H + h) * (C * (C + 8) // 2)
        of_scores = tl.load(of_scores_ptr + triangles + places, mask=below, other=0.0)
        of_keys = tl.load(of_keys_ptr + triangles + places, mask=below, other=0.0)
        Q = tl.load(q_at + h // (H // HQ) * D, mask=keys, other=0.0).to(OPERAND)
        K = tl.load(k_at, mask=keys, other=0.0).to(OPERAND)
        dQ = tl.dot(of_scores, K, acc=dQ, input_precision=PRECISION)
        dK = tl.dot(tl.trans(of_scores), Q, acc=dK, input_precision=PRECISION)
        dK = tl.dot(of_keys, K, acc=dK, input_precision=PRECISION)
        dK = tl.dot(tl.trans(of_keys), K, acc=dK, input_precision=PRECISION)
    return dQ, dK


@triton.jit
def rests_of_given(
    cu_seqlens_ptr, total, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, n, slot, end, first, count, head, part,
    H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SLICES: tl.constexpr,
    TURNS: tl.constexpr,
):  # fmt: skip
    """Adds what given states lose as operands to <S, dS> of the first and the last chunk of a sequence."""
    starts = first == start_of(cu_seqlens_ptr, n, total)
    ends = first + count == start_of(cu_seqlens_ptr, n + 1, total)
    if starts | ends:
        tl.debug_barrier()
        for h in range(head * GROUP, (head + 1) * GROUP):
            sums = sums_ptr + ((slot * H + h) * SLICES + part) * TURNS * (2 * C + 4) + 2 * C
            of_start, of_end = (slot * H + h) * (D * D), (end * H + h) * (D * D)
            through = tl.load(sums)
            if HAS_INITIAL and starts:
                through += product_with_rest(
                    initial_ptr, ends_ptr + of_end, n, h, part * BK, D, K_FIRST, OPERAND, H, BK
                )  # fmt: skip
            if HAS_DHT and ends:
                through += product_with_rest(
                    dht_ptr, starts_ptr + of_start, n, h, part * BK, D, K_FIRST, OPERAND, H, BK
                )  # fmt: skip
            tl.debug_barrier()
            tl.store(sums, through)


@triton.jit(do_not_specialize=["num_seqs", "total", "part", "places"])
def gradients_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, initial_ptr, dht_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr, decay_ptr,
    of_scores_ptr, of_keys_ptr, dq_ptr, dk_ptr, dv_out_ptr, sums_ptr, scale, num_seqs, total, part, places, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
    SEGMENT: tl.constexpr, PARTS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """A program has a chunk of a part, a key head and a slice of the key channels, and takes the heads that share the
    key head in turn: so dq and dk are sums in one order, and are rounded once."""
    GROUP: tl.constexpr = H // HK
    OUTER: tl.constexpr = HQ // HK  # GQA: query heads share keys and values, and each has a sum of its own
    INNER: tl.constexpr = GROUP // OUTER
    SLICES: tl.constexpr = (D + BK - 1) // BK
    of, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    head, at = pair % HK, pair // HK
    part, place = part + at // places, at % places
    n, slot, first, count = chunk_of_part(cu_seqlens_ptr, place, part, num_seqs, total, C, SEGMENT, PARTS)
    t, j = tl.arange(0, C), of * BK + tl.arange(0, BK)
    chunk = part.to(tl.int64) * places + place  # all rows are in those of all parts
    behind = chunk * C + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros_behind(chunk, head, t, j, none, dq_ptr, dk_ptr, dv_out_ptr, HQ, HK, HV, D, C, BK)
    if count <= 0:  # a place that no chunk has
        return

    end = slot if ALL else slot * 0 + at
    q_ptr += first * HQ * D
    k_ptr += (first * HK + head) * D
    dq_ptr += first * HQ * D
    dk_ptr += (first * HK + head) * D
    do_ptr += first * H * D
    r_ptr += first * H * D
    dv_ptr += first * H * D
    row, norm_at = t < count, first * HQ + t * HQ
    k_at, q_at = k_ptr + t[:, None] * (HK * D) + j[None, :], q_ptr + t[:, None] * (HQ * D) + j[None, :]
    dK = tl.zeros([C, BK], dtype=tl.float32)
    for outer in tl.range(0, OUTER, num_stages=1):  # where a head has one turn, its loads would be ahead here: too many
        dQ = tl.zeros([C, BK], dtype=tl.float32)
        heads = head * GROUP + outer * INNER
        dQ, dK = through_states(
            dQ, dK, k_at, q_at, do_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr, decay_ptr, sums_ptr, scale, norm_ptr,
            norm_at, slot, end, heads, t, j, row, of, NORMED, HQ, H, D, OPERAND, PRECISION, C, BV, INNER, SLICES,
            STAGES,
        )  # fmt: skip
        dQ, dK = between_tokens(
            dQ, dK, k_at, q_at, of_scores_ptr, of_keys_ptr, slot, heads, t, j, row, HQ, H, D, OPERAND, PRECISION, C,
            INNER, STAGES,
        )  # fmt: skip
        store_channels(dq_ptr + (head * (HQ // HK) + outer) * D, dQ, t, j, row, HQ, D)
    store_channels(dk_ptr, dK, t, j, row, HK, D)
    if tl.float32 != OPERAND and (HAS_INITIAL or HAS_DHT):
        rests_of_given(
            cu_seqlens_ptr, total, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, n, slot, end, first, count,
            head, of, H, D, HAS_INITIAL, HAS_DHT, K_FIRST, OPERAND, C, BK, GROUP, SLICES, (D + BV - 1) // BV,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_seqs", "total"])
def shared_kernel(
    cu_seqlens_ptr, x_ptr, dv_ptr, num_seqs, total,
    HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dv where backward_kernel had no place for it in dv itself. GQA: it is a sum over heads that share values."""
    head, slot = tl.program_id(0) % HV, (tl.program_id(0) // HV).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    row = t < count
    for d_first in range(0, D, BD):
        d, dv = d_first + tl.arange(0, BD), tl.zeros([C, BD], dtype=tl.float32)
        for h in range(head * (H // HV), (head + 1) * (H // HV)):
            dv += channels_of(x_ptr + (first * H + h) * D, t, d, row, H, D).to(tl.float32)
        store_channels(dv_ptr + (first * HV + head) * D, dv, t, d, row, HV, D)
