"""dq and dk of all chunks at once, and sums for dg.

Everything is transposed, [key channels, tokens]: so each product has on its left what was loaded, and what the kernel
has computed is on its right.
"""

import triton
import triton.language as tl
from chunks import sequence_of, start_of, tokens_of
from decays import decays_between, gates_between_tokens
from edges import product_with_rest
from rows import channels_of, scaled, scores_of, store_channels


@triton.jit
def zeros_behind(slot, head, part, t, j, none, dq_ptr, dk_ptr, dv_ptr, HQ: tl.constexpr, HK: tl.constexpr,
                 HV: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Rows behind the last sequence belong to none: their gradients are zero."""
    zeros = tl.zeros([C, BK], dtype=tl.float32)
    store_channels(dk_ptr + (slot * C * HK + head) * D, zeros, t, j, none, HK, D)
    for h in range(head * (HQ // HK), (head + 1) * (HQ // HK)):
        store_channels(dq_ptr + (slot * C * HQ + h) * D, zeros, t, j, none, HQ, D)
    for h in range(head * (HV // HK), (head + 1) * (HV // HK)):
        store_channels(dv_ptr + (slot * C * HV + h) * D, zeros, t, j, none, HV, D)


@triton.jit
def state_times(
    state_ptr, x_ptr, t, j, row, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The state of a chunk, over all value channels, times its rows: [BK, C]."""
    X = tl.zeros([BK, C], dtype=tl.float32)
    for i_first in tl.static_range(0, D, BV):
        i = i_first + tl.arange(0, BV)
        S = tl.load(state_ptr + j[:, None] * D + i[None, :], mask=(j < D)[:, None] & (i < D)[None, :], other=0.0)
        x = channels_of(x_ptr, t, i, row, H, D).to(OPERAND)
        X = tl.dot(S, tl.trans(x), acc=X, input_precision=PRECISION)
    return X


@triton.jit
def product_of_states(
    starts_ptr, ends_ptr, j, D: tl.constexpr, PRECISION: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """<S, dS> of both ends of a chunk, over a program's key channels: what is on the diagonal of S dS^T."""
    X = tl.zeros([BK, BK], dtype=tl.float32)
    for i_first in tl.static_range(0, D, BV):
        i = i_first + tl.arange(0, BV)
        at, there = j[:, None] * D + i[None, :], (j < D)[:, None] & (i < D)[None, :]
        S = tl.load(starts_ptr + at, mask=there, other=0.0)
        dS = tl.load(ends_ptr + at, mask=there, other=0.0)
        X = tl.dot(S, tl.trans(dS), acc=X, input_precision=PRECISION)
    return tl.sum(tl.sum(tl.where(j[:, None] == j[None, :], X, 0.0), axis=1), axis=0)


@triton.jit
def products_with_rests(
    starts_ptr, ends_ptr, initial_ptr, dht_ptr, cu_seqlens_ptr, first, count, slot, num_seqs, total, h, part,
    H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What given states lose as operands of <S, dS>: an input is not to be rounded there, for the sum may be small."""
    found = 0.0
    if tl.float32 != OPERAND:
        n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
        if HAS_INITIAL:
            if first == start_of(cu_seqlens_ptr, n, total):
                found += product_with_rest(initial_ptr, ends_ptr, n, h, part * BK, D, K_FIRST, OPERAND, H, BK)
        if HAS_DHT:
            if first + count == start_of(cu_seqlens_ptr, n + 1, total):
                found += product_with_rest(dht_ptr, starts_ptr, n, h, part * BK, D, K_FIRST, OPERAND, H, BK)
    return found


@triton.jit(do_not_specialize=["num_seqs", "total"])
def gradients_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, initial_ptr, dht_ptr, r_ptr, x_ptr, starts_ptr, ends_ptr, decay_ptr, P_ptr,
    later_ptr, dq_ptr, dk_ptr, dv_ptr, sums_ptr, scale, num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr,
    TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a key head and a slice of the key channels, and takes the heads that share the key head in
    turn: so dq and dk are sums in one order, and are rounded once.

    What passes from token to token is needed by all slices, and its part in dg is left to the first and the last.
    """
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
        zeros_behind(slot, head, part, t, j, none, dq_ptr, dk_ptr, dv_ptr, HQ, HK, HV, D, C, BK)
    if count <= 0:  # a slot that no chunk has
        return

    q_ptr += first * HQ * D
    k_ptr += (first * HK + head) * D
    dq_ptr += first * HQ * D
    dk_ptr += (first * HK + head) * D
    do_ptr += first * H * D
    r_ptr += first * H * D
    x_ptr += first * H * D
    row = t < count
    square = t[:, None] * C + t[None, :]
    nothing = tl.zeros([BK, C], dtype=tl.float32)

    dQ, dK = nothing, nothing
    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=1):
        # Zero, which the compiler does not know: else it keeps hundreds of addresses in registers from head to head.
        t, j = tl.arange(0, C) + (h >> 24), part * BK + tl.arange(0, BK)
        row, rows = t < count, j + (h >> 24)
        square = t[:, None] * C + t[None, :]
        at = slot * H + h
        decay, state = decay_ptr + at * (6 * C), at * (D * D)
        between = tl.zeros([C], dtype=tl.float32)
        # Loaded by h, or they would be loaded before the loop, and be in the way of the sums.
        k_at, q_at = k_ptr + (h // GROUP - head) * D, q_ptr + h // (H // HQ) * D
        K = channels_of(k_at, t, j, row, HK, D).to(OPERAND)
        Q = channels_of(q_at, t, j, row, HQ, D).to(OPERAND)

        # dP = G U^T for U = diag(beta) r: the right operand is r, the factor comes afterwards.
        dP = scores_of(do_ptr + h * D, r_ptr + h * D, t, row, H, H, D, OPERAND, PRECISION, C, BV)
        dP *= tl.load(decay + 3 * C + t)[None, :]
        if part == 0:  # Gamma times its gradient
            P = tl.load(P_ptr + at * (C * C) + square).to(tl.float32)
            between += gates_between_tokens(P * dP, later_ptr, TERMS, PRECISION, C)
        Gamma = decays_between(dP, tl.load(decay + 4 * C + t), tl.load(decay + 5 * C + t))
        dP = scaled(dP * Gamma, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED)
        dP = tl.where(t[:, None] >= t[None, :], dP, 0.0).to(OPERAND)
        dQ = tl.dot(tl.trans(K), tl.trans(dP), acc=dQ, input_precision=PRECISION)
        dK = tl.dot(tl.trans(Q), dP, acc=dK, input_precision=PRECISION)

        # Q S^T and K S^T, which the gates need, are sums of G S and dV S with Q and K.
        tl.debug_barrier()  # else what is loaded again stays in registers
        gamma = tl.load(decay + t)
        X = state_times(starts_ptr + state, do_ptr + h * D, t, rows, row, H, D, OPERAND, PRECISION, C, BK, BV) * scale
        if NORMED:
            X *= tl.load(norm_ptr + first * HQ + h // (H // HQ) + t * HQ, mask=row, other=0.0)[None, :]
        of_start = X * tl.trans(channels_of(q_at, t, j, row, HQ, D)).to(tl.float32)
        dQ += X * gamma[None, :]
        X = state_times(starts_ptr + state, x_ptr + h * D, t, rows, row, H, D, OPERAND, PRECISION, C, BK, BV)
        of_start -= X * tl.trans(channels_of(k_at, t, j, row, HK, D)).to(tl.float32)
        dK -= X * gamma[None, :]
        of_start = tl.sum(of_start, axis=0)

        # dA = -strict_lower(dV U^T)
        tl.debug_barrier()
        dA = scores_of(x_ptr + h * D, r_ptr + h * D, t, row, H, H, D, OPERAND, PRECISION, C, BV)
        dA *= -tl.load(decay + 3 * C + t)[None, :]
        dA *= decays_between(dA, tl.load(decay + 4 * C + t), tl.load(decay + 5 * C + t))
        dA = tl.where(t[:, None] > t[None, :], dA, 0.0)
        if part == SLICES - 1:
            KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BV)
            between += gates_between_tokens(KK * dA, later_ptr, TERMS, PRECISION, C)
        dA = dA.to(OPERAND)
        dK = tl.dot(tl.trans(K), dA, acc=dK, input_precision=PRECISION)
        dK = tl.dot(tl.trans(K), tl.trans(dA), acc=dK, input_precision=PRECISION)

        tl.debug_barrier()
        X = state_times(ends_ptr + state, r_ptr + h * D, t, rows, row, H, D, OPERAND, PRECISION, C, BK, BV)
        dK += X * (tl.load(decay + 3 * C + t) * tl.load(decay + 2 * C + t))[None, :]
        through = product_of_states(starts_ptr + state, ends_ptr + state, rows, D, PRECISION, BK, BV)
        through += products_with_rests(
            starts_ptr + state, ends_ptr + state, initial_ptr, dht_ptr, cu_seqlens_ptr, first, count, slot, num_seqs,
            total, h, part, H, D, HAS_INITIAL, HAS_DHT, K_FIRST, OPERAND, C, BK,
        )  # fmt: skip

        sums = sums_ptr + (at * SLICES + part) * (3 * C)
        tl.store(sums + t, of_start)
        tl.store(sums + C + t, between)
        tl.store(sums + 2 * C, through)
        if SHARED_V:
            store_channels(dq_ptr + h * D, tl.trans(dQ), t, j, row, HQ, D)
            dQ = nothing
    if not SHARED_V:
        store_channels(dq_ptr + head * D, tl.trans(dQ), t, j, row, HQ, D)
    store_channels(dk_ptr, tl.trans(dK), t, j, row, HK, D)


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
