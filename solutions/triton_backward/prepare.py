"""What needs no state, of all chunks at once: the inverse that both walks multiply by, P, and decays."""

import triton
import triton.language as tl
from chunks import tokens_of
from decays import decay, decays_between, log_decay, store_lost
from inverse import unit_lower_inverse
from rows import LEAST, scaled, scores_of, triangle, write_gates


@triton.jit(do_not_specialize=["num_seqs", "total"])
def prepare_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, inverse_ptr, P_ptr, decay_ptr, later_ptr, scale, num_seqs, total,
    norm_ptr, lost_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, LOST: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    # The last chunks come first: the walk over states finds the first ones in the cache.
    h, slot = tl.program_id(0) % H, ((tl.num_programs(0) - 1 - tl.program_id(0)) // H).to(tl.int64)
    t = tl.arange(0, C)
    if tl.program_id(0) == 0:  # ones from each token on, for within_kernel
        tl.store(later_ptr + t[:, None] * C + t[None, :], tl.where(t[:, None] <= t[None, :], 1.0, 0.0).to(OPERAND))
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return

    # From here on all offsets are within the chunk, and fit into 32 bits.
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HK + h // (H // HK)) * D
    inverse_ptr += (slot * H + h) * (C * (C + 8) // 2)
    P_ptr += (slot * H + h) * (C * (C + 8) // 2)
    places, below = triangle(t, C)
    decay_ptr += (slot * H + h) * (8 * C)

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    row = t < count
    beta = write_gates(beta_ptr, first * H + h + t * H, row, HAS_BETA)
    b = tl.where(tl.abs(beta) < LEAST, LEAST, beta)

    # Decays: from the chunk's start to each token, and from each token to the end.
    fall, resets = log_decay(g_ptr, first * H + h + t * H, row, GATE, C)
    last = t == C - 1
    to_end = tl.sum(tl.where(last, resets, 0.0), axis=0) - resets + tl.sum(tl.where(last, fall, 0.0), axis=0) - fall
    tl.store(decay_ptr + t, decay(resets + fall))
    to_end = decay(tl.minimum(to_end, 0.0))
    tl.store(decay_ptr + C + t, to_end * b)
    tl.store(decay_ptr + 2 * C + t, to_end)
    tl.store(decay_ptr + 3 * C + t, beta)
    tl.store(decay_ptr + 4 * C + t, fall)
    tl.store(decay_ptr + 5 * C + t, resets)
    tl.store(decay_ptr + 6 * C + t, 1 / b)
    tl.store(decay_ptr + 7 * C + t, to_end * beta)

    QK = scores_of(q_ptr, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BK)
    Gamma = decays_between(QK, fall, resets)
    P = scaled(QK * Gamma, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED) * b[None, :]
    tl.store(P_ptr + places, tl.where(t[:, None] >= t[None, :], P, 0.0).to(OPERAND), mask=below)

    # One inverse does for both walks: x = M^T X for M = (I + diag(b) N)^-1, and diag(b) M^T = E^T diag(b).
    # E = (I + N diag(b))^-1 for N = strict_lower(Gamma * K K^T). `unit_lower_inverse` never looks at the rest of N.
    KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BK)
    if LOST:
        store_lost(lost_ptr + (slot * H + h) * C, KK, beta, fall + resets, t, C)
    E = unit_lower_inverse(KK * Gamma * b[None, :], C, TERMS, PRECISION)
    tl.store(inverse_ptr + places, E.to(OPERAND), mask=below)
