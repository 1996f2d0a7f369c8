"""What passes from token to token within a chunk: what dq and dk multiply, and part of dg."""

import triton
import triton.language as tl
from chunks import chunk_of_part
from decays import decays_between, gates_between_tokens
from rows import LEAST, channels_of, scaled, scores_of, store_channels, triangle


@triton.jit
def small_write_gates(P, dA, dv_ptr, decay_ptr, t, row, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """P and dV have the factor b so far (prepare.py), which is never 0. Where that is not beta, beta takes its place,
    before gradients_kernel reads dV. Returned are P, and dV U^T."""
    beta = tl.load(decay_ptr + 3 * C + t)
    other = row & (tl.abs(beta) < LEAST)
    if tl.max(other.to(tl.int32), axis=0) > 0:
        ratio = tl.where(other, beta * tl.load(decay_ptr + 6 * C + t), 1.0)
        P = (P.to(tl.float32) * ratio[None, :]).to(P.dtype)
        dA *= ratio[:, None]
        for d_first in tl.range(0, D, 16, num_stages=1):  # few at a time: it is seldom done, and takes registers
            d = d_first + tl.arange(0, 16)
            dV = channels_of(dv_ptr, t, d, row, H, D).to(tl.float32) * ratio[:, None]
            tl.debug_barrier()  # all of it is read
            store_channels(dv_ptr, dV, t, d, row & other, H, D)
    return P, dA


@triton.jit
def of_scores_and_keys(
    do_ptr, r_ptr, dv_ptr, decay_ptr, of_keys_ptr, of_scores_ptr, of_beta_ptr, scale, norm_ptr, norm_at, t, row,
    NORMED: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BD: tl.constexpr, OF_BETA: tl.constexpr,
):  # fmt: skip
    """Of one head: the gradients of Q K^T and of K K^T [C, C] take the places of P and of the inverse. Returned are
    P times its gradient, and the gradient of K K^T."""
    places, below = triangle(t, C)
    P = tl.load(of_scores_ptr + places, mask=below, other=0.0)  # ahead of the products: fewer registers spill

    # dP = G U^T and dA = -strict_lower(dV U^T), U = diag(beta) r: the right operand is r, the factor comes afterwards.
    if BD >= D:  # all loads begin before anything waits
        d = tl.arange(0, BD)
        r, G = channels_of(r_ptr, t, d, row, H, D), channels_of(do_ptr, t, d, row, H, D).to(OPERAND)
        dV = channels_of(dv_ptr, t, d, row, H, D)
        dP = tl.dot(G, tl.trans(r), input_precision=PRECISION)
        dA = tl.dot(dV, tl.trans(r), input_precision=PRECISION)
    else:
        dP = scores_of(do_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD)
        dA = scores_of(dv_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD)
    if OF_BETA:  # the sum of b x . r (gates.py)
        tl.store(of_beta_ptr + t, tl.sum(tl.where(t[:, None] == t[None, :], dA, 0.0), axis=1))
    P, dA = small_write_gates(P, dA, dv_ptr, decay_ptr, t, row, H, D, C)
    Gamma = decays_between(dP, tl.load(decay_ptr + 4 * C + t), tl.load(decay_ptr + 5 * C + t))
    beta = tl.load(decay_ptr + 3 * C + t)
    between = P.to(tl.float32) * dP  # of both decays in P and in A, Gamma times its gradient
    dP = scaled(dP * beta[None, :] * Gamma, scale, norm_ptr, norm_at, row, NORMED)
    tl.debug_barrier()  # all of P is read
    tl.store(of_scores_ptr + places, tl.where(t[:, None] >= t[None, :], dP, 0.0).to(OPERAND), mask=below)
    # A has a factor beta, which is in dV: so dA is symmetric in what it does to keys.
    dA = tl.where(t[:, None] > t[None, :], dA * -beta[None, :] * Gamma, 0.0)
    tl.store(of_keys_ptr + places, dA.to(OPERAND), mask=below)
    return between, dA


@triton.jit(do_not_specialize=["num_seqs", "total", "part", "places"])
def within_kernel(
    k_ptr, do_ptr, cu_seqlens_ptr, r_ptr, dv_ptr, decay_ptr, later_ptr, of_keys_ptr, of_scores_ptr, between_ptr,
    of_beta_ptr, scale, num_seqs, total, part, places, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    SEGMENT: tl.constexpr, PARTS: tl.constexpr, OF_BETA: tl.constexpr,
):  # fmt: skip
    """A program has a chunk of a part and a head. OF_BETA: dbeta is found here, from rounded dV and r."""
    # The chunks that the walk back has left last come first: they are still in the cache.
    h, at = tl.program_id(0) % H, (tl.num_programs(0) - 1 - tl.program_id(0)) // H
    part, at = part + at // places, at % places
    _, slot, first, count = chunk_of_part(cu_seqlens_ptr, at, part, num_seqs, total, C, SEGMENT, PARTS)
    if count <= 0:  # a place that no chunk has
        return
    k_ptr += (first * HK + h // (H // HK)) * D
    t, tokens = tl.arange(0, C), (first * H + h) * D
    row = t < count
    chunk = slot * H + h
    between, dA = of_scores_and_keys(
        do_ptr + tokens, r_ptr + tokens, dv_ptr + tokens, decay_ptr + chunk * (8 * C),
        of_keys_ptr + chunk * (C * (C + 8) // 2), of_scores_ptr + chunk * (C * (C + 8) // 2), of_beta_ptr + chunk * C,
        scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, t, row, NORMED, H, D, OPERAND, PRECISION, C, BD, OF_BETA,
    )  # fmt: skip
    between += dA * scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    found = gates_between_tokens(between, later_ptr, TERMS, PRECISION, C)
    tl.store(between_ptr + chunk * C + t, found)
