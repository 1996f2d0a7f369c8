"""The gradients that pass from token to token within a chunk: dv, part of dg, and what dq and dk multiply."""

import triton
import triton.language as tl
from chunks import sequence_of, start_of, tokens_of
from decays import decays_between, gates_between_tokens, log_decay, steep_gates
from products import rest_of
from rows import channels_of, rest_at, scaled, scores_of, store_channels, write_gates


@triton.jit
def rest_of_chunk(rest_ptr, n, h, is_last, t, d, row, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """What rows at an end of a sequence lost as operands, and 0 elsewhere: [C, BD]."""
    at = rest_at(n, h, is_last, t, d, H, D, C)
    return tl.load(rest_ptr + at, mask=row[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_rest(rest_ptr, x, n, h, is_last, t, d, row, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    at = rest_at(n, h, is_last, t, d, H, D, C)
    tl.store(rest_ptr + at, rest_of(x, rest_ptr.dtype.element_ty), mask=row[:, None] & (d < D)[None, :])


@triton.jit
def zeros_behind(behind, none, dv_ptr, dg_ptr, dbeta_ptr, slot, head, HK: tl.constexpr, HV: tl.constexpr,
                 H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):  # fmt: skip
    """Rows behind the last sequence belong to none: their gradients are zero."""
    t = tl.arange(0, C)
    for h in range(head * (H // HK), (head + 1) * (H // HK)):
        tl.store(dg_ptr + behind * H + h, tl.zeros([C], dtype=tl.float32), mask=none)
        tl.store(dbeta_ptr + behind * H + h, tl.zeros([C], dtype=tl.float32), mask=none)
        for d_first in tl.static_range(0, D, BD):
            d, zeros = d_first + tl.arange(0, BD), tl.zeros([C, BD], dtype=tl.float32)
            store_channels(dv_ptr + (slot * C * HV + h // (H // HV)) * D, zeros, t, d, none, HV, D)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def within_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, r_ptr, rest_of_r_ptr, x_ptr, rest_of_x_ptr, later_ptr,
    of_scores_ptr, of_keys_ptr, dv_ptr, dg_ptr, dbeta_ptr, scale, num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, IN_DV: tl.constexpr, HAS_REST: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and a key head, and takes the heads that share it in turn, twice: for what comes through
    scores Q K^T, then for what comes through K K^T. It leaves the gradients of both [C, C]: that of the scores summed
    over heads which share their queries, the other summed and symmetric. x becomes dv of each head; IN_DV: it lies in
    the rows of dv.
    """
    SHARED_V: tl.constexpr = HV < H  # GQA: query heads share keys and values
    GROUP: tl.constexpr = H // HK
    head, slot = tl.program_id(0) % HK, (tl.program_id(0) // HK).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    behind = slot * C + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros_behind(behind, none, dv_ptr, dg_ptr, dbeta_ptr, slot, head, HK, HV, H, D, C, BD)
    if count <= 0:  # a slot that no chunk has
        return

    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    is_last = first + count == start_of(cu_seqlens_ptr, n + 1, total)
    is_edge = is_last | (first == start_of(cu_seqlens_ptr, n, total))
    q_ptr += first * HQ * D
    k_ptr += (first * HK + head) * D
    do_ptr += first * H * D
    r_ptr += first * H * D
    x_ptr += first * H * D
    dv_ptr += first * HV * D
    row = t < count
    lower, below = t[:, None] >= t[None, :], t[:, None] > t[None, :]
    square = t[:, None] * C + t[None, :]
    nothing = tl.zeros([C, C], dtype=tl.float32)

    # dP = G U^T, U = diag(beta) r: the right operand is r, and the factors come after the product.
    sums = nothing
    if not SHARED_V:
        QK = scores_of(q_ptr + head * D, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BD)
    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=STAGES):
        if SHARED_V:
            QK = scores_of(q_ptr + h * D, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BD)
        dP = scores_of(do_ptr + h * D, r_ptr + h * D, t, row, H, H, D, OPERAND, PRECISION, C, BD)
        at = first * H + h + t * H
        beta = write_gates(beta_ptr, at, row, HAS_BETA)
        fall, resets = log_decay(g_ptr, at, row, GATE, C)
        Gamma = decays_between(dP, fall, resets)
        dP = scaled(dP * beta[None, :], scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED)
        Gamma, dP = tl.where(lower, Gamma, 0.0), tl.where(lower, dP, 0.0)
        if SHARED_V:
            tl.store(of_scores_ptr + (slot * H + h) * (C * C) + square, (dP * Gamma).to(OPERAND))
        else:
            sums += dP * Gamma
        dP *= QK
        alpha, _ = steep_gates(g_ptr, at, row, GATE, C)
        later = tl.load(later_ptr + square)
        dg = gates_between_tokens(dP, Gamma, later, alpha, TERMS, PRECISION, C)
        tl.store(dg_ptr + at, dg, mask=row)
    if not SHARED_V:
        tl.store(of_scores_ptr + (slot * HK + head) * (C * C) + square, sums.to(OPERAND))

    # dA = -strict_lower(X U^T), with the factor beta of A: it is symmetric in what it does to keys.
    KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    sums = nothing
    for h in tl.range(head * GROUP, (head + 1) * GROUP, num_stages=STAGES):
        at = first * H + h + t * H
        beta = write_gates(beta_ptr, at, row, HAS_BETA)
        dA, dbeta = nothing, tl.zeros([C], dtype=tl.float32)
        for d_first in range(0, D, BD):
            d = d_first + tl.arange(0, BD)
            r = channels_of(r_ptr + h * D, t, d, row, H, D)
            x = channels_of(x_ptr + h * D, t, d, row, H, D)
            dA = tl.dot(x, tl.trans(r), acc=dA, input_precision=PRECISION)
            exact = x.to(tl.float32)
            if HAS_REST:
                exact += rest_of_chunk(rest_of_x_ptr, n, h, is_last, t, d, row & is_edge, H, D, C)
                rest = rest_of_chunk(rest_of_r_ptr, n, h, is_last, t, d, row & is_edge, H, D, C)
                dbeta += tl.sum(exact * rest, axis=1)
            if not SHARED_V:
                dv = exact * beta[:, None]
                store_channels(x_ptr + h * D, dv, t, d, row, H, D)
                if HAS_REST:
                    store_rest(rest_of_x_ptr, dv, n, h, is_last, t, d, row & is_edge, H, D, C)
                if not IN_DV:
                    store_channels(dv_ptr + h * D, dv, t, d, row, HV, D)
        tl.store(dbeta_ptr + at, dbeta, mask=row)
        fall, resets = log_decay(g_ptr, at, row, GATE, C)
        Gamma = decays_between(dA, fall, resets)
        Gamma, dA = tl.where(below, Gamma, 0.0), tl.where(below, dA * -beta[:, None] * beta[None, :], 0.0)
        sums += dA * Gamma
        dA *= KK
        alpha, _ = steep_gates(g_ptr, at, row, GATE, C)
        later = tl.load(later_ptr + square)
        dg = gates_between_tokens(dA, Gamma, later, alpha, TERMS, PRECISION, C)
        tl.debug_barrier()  # what the scores gave is written
        tl.store(dg_ptr + at, tl.load(dg_ptr + at, mask=row, other=0.0) + dg, mask=row)
    sums += tl.trans(sums)
    tl.store(of_keys_ptr + (slot * HK + head) * (C * C) + square, sums.to(OPERAND))

    if SHARED_V:  # dv sums over the heads, some channels at a time
        for d_first in tl.static_range(0, D, BD):
            d = d_first + tl.arange(0, BD)
            dv = tl.zeros([C, BD], dtype=tl.float32)
            for h in range(head * GROUP, (head + 1) * GROUP):
                beta = write_gates(beta_ptr, first * H + h + t * H, row, HAS_BETA)
                x = channels_of(x_ptr + h * D, t, d, row, H, D).to(tl.float32)
                if HAS_REST:
                    x += rest_of_chunk(rest_of_x_ptr, n, h, is_last, t, d, row & is_edge, H, D, C)
                x *= beta[:, None]
                store_channels(x_ptr + h * D, x, t, d, row, H, D)
                if HAS_REST:
                    store_rest(rest_of_x_ptr, x, n, h, is_last, t, d, row & is_edge, H, D, C)
                dv += x
            store_channels(dv_ptr + head * D, dv, t, d, row, HV, D)
