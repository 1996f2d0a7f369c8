"""The gradients that pass from token to token within a chunk: dv, part of dg, and what dq and dk multiply."""

import triton
import triton.language as tl
from chunks import start_of, tokens_of
from decays import decays_between, gates_between_tokens, log_decay, steep_gates
from rows import channels_of, scaled, scores_of, store_channels, write_gates


@triton.jit
def zeros_behind(behind, none, dv_ptr, dg_ptr, dbeta_ptr, slot, h, HV: tl.constexpr, H: tl.constexpr,
                 D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):  # fmt: skip
    """Rows behind the last sequence belong to none: their gradients are zero."""
    t = tl.arange(0, C)
    tl.store(dg_ptr + behind * H + h, tl.zeros([C], dtype=tl.float32), mask=none)
    tl.store(dbeta_ptr + behind * H + h, tl.zeros([C], dtype=tl.float32), mask=none)
    for d_first in tl.static_range(0, D, BD):
        d, zeros = d_first + tl.arange(0, BD), tl.zeros([C, BD], dtype=tl.float32)
        store_channels(dv_ptr + (slot * C * HV + h // (H // HV)) * D, zeros, t, d, none, HV, D)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def within_kernel(
    k_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, r_ptr, x_ptr, later_ptr, of_keys_ptr, of_scores_ptr,
    of_walk_ptr, dv_ptr, dg_ptr, dbeta_ptr, scale, num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, IN_DV: tl.constexpr, VALUE_SLICES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and a head. The gradients of Q K^T and of K K^T [C, C] take the places of P and of the
    inverse, and dv that of x. IN_DV: x lies in the rows of dv; else dv is written there as well, if the head has one.
    """
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    behind = slot * C + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros_behind(behind, none, dv_ptr, dg_ptr, dbeta_ptr, slot, h, HV, H, D, C, BD)
    if count <= 0:  # a slot that no chunk has
        return

    k_ptr += (first * HK + h // (H // HK)) * D
    do_ptr += (first * H + h) * D
    r_ptr += (first * H + h) * D
    x_ptr += (first * H + h) * D
    dv_ptr += (first * HV + h // (H // HV)) * D
    row = t < count
    square = t[:, None] * C + t[None, :]
    of_scores_ptr += (slot * H + h) * (C * C)
    of_keys_ptr += (slot * H + h) * (TERMS * C * C)
    at = first * H + h + t * H
    beta = write_gates(beta_ptr, at, row, HAS_BETA)

    # dP = G U^T and dA = -strict_lower(X U^T), U = diag(beta) r: the right operand is r, the factors come afterwards.
    dP, dA = tl.zeros([C, C], dtype=tl.float32), tl.zeros([C, C], dtype=tl.float32)
    for d_first in tl.static_range(0, D, BD):
        d = d_first + tl.arange(0, BD)
        r = channels_of(r_ptr, t, d, row, H, D)
        G = channels_of(do_ptr, t, d, row, H, D).to(OPERAND)
        dP = tl.dot(G, tl.trans(r), acc=dP, input_precision=PRECISION)
        x = channels_of(x_ptr, t, d, row, H, D)
        dA = tl.dot(x, tl.trans(r), acc=dA, input_precision=PRECISION)

    fall, resets = log_decay(g_ptr, at, row, GATE, C)
    Gamma = decays_between(dP, fall, resets)
    dP *= beta[None, :]
    P = tl.load(of_scores_ptr + square).to(tl.float32)
    between = P * dP  # of both decays in P and in A, Gamma times its gradient
    dP = scaled(dP * Gamma, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED)
    tl.debug_barrier()  # all of P is read
    tl.store(of_scores_ptr + square, tl.where(t[:, None] >= t[None, :], dP, 0.0).to(OPERAND))
    # A has a factor beta, which goes to dA: so dA is symmetric in what it does to keys.
    dA = tl.where(t[:, None] > t[None, :], dA * -beta[:, None] * beta[None, :] * Gamma, 0.0)
    tl.store(of_keys_ptr + square, dA.to(OPERAND))
    between += dA * scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    alpha, _ = steep_gates(g_ptr, at, row, GATE, C)
    tl.store(dg_ptr + at, gates_between_tokens(between, later_ptr, alpha, TERMS, PRECISION, C), mask=row)

    dbeta = tl.zeros([C], dtype=tl.float32)
    for part in tl.static_range(VALUE_SLICES):
        dbeta += tl.load(of_walk_ptr + ((slot * H + h) * VALUE_SLICES + part) * C + t)
    for d_first in tl.static_range(0, D, BD):
        d = d_first + tl.arange(0, BD)
        dv = channels_of(x_ptr, t, d, row, H, D).to(tl.float32) * beta[:, None]
        store_channels(x_ptr, dv, t, d, row, H, D)
        if HV == H and not IN_DV:
            store_channels(dv_ptr, dv, t, d, row, HV, D)
    tl.store(dbeta_ptr + at, dbeta, mask=row)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def shared_kernel(
    cu_seqlens_ptr, x_ptr, dv_ptr, num_seqs, total,
    HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """GQA: the values of a key head are shared by heads, and dv is the sum of what within_kernel has left of each."""
    head, slot = tl.program_id(0) % HK, (tl.program_id(0) // HK).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    row = t < count
    for d_first in range(0, D, BD):
        d, dv = d_first + tl.arange(0, BD), tl.zeros([C, BD], dtype=tl.float32)
        for h in range(head * (H // HK), (head + 1) * (H // HK)):
            dv += channels_of(x_ptr + (first * H + h) * D, t, d, row, H, D).to(tl.float32)
        store_channels(dv_ptr + (first * HK + head) * D, dv, t, d, row, HK, D)
