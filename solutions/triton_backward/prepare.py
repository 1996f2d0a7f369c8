"""What needs no state, of all chunks at once: what the two walks multiply by, and what they start a chunk from."""

import triton
import triton.language as tl
from chunks import tokens_of
from decays import decays_between, log_decay
from inverse import unit_lower_inverse
from products import loaded_times
from rows import channels_of, scaled, scores_of, write_gates

LEAST: tl.constexpr = tl.constexpr(2.0**-40)  # beside an error of its size a write is nothing in float32


@triton.jit
def store_products(
    k_ptr, v_ptr, do_ptr, w_ptr, z_ptr, r_ptr, x_ptr, E_of_state, M, E, PM, d_first, t, row,
    HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr,
    PRECISION: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Of BD channels -w, z, and the parts of r and x that need no state. All are made transposed, [channels, C]: then
    what was loaded is on the left."""
    d = d_first + tl.arange(0, BD)
    there = (d < D)[:, None] & (t >= 0)[None, :]
    inside = (d < D)[:, None] & row[None, :]
    K = tl.trans(channels_of(k_ptr, t, d, row, HK, D).to(OPERAND))
    w = loaded_times(K, E_of_state, TERMS, PRECISION)
    tl.store(w_ptr + t[None, :] * D + d[:, None], (-w).to(OPERAND), mask=there)
    z = loaded_times(K, M, TERMS, PRECISION)
    tl.store(z_ptr + t[None, :] * D + d[:, None], z.to(OPERAND), mask=there)
    V = tl.trans(channels_of(v_ptr, t, d, row, HV, D).to(OPERAND))
    u = loaded_times(V, E, TERMS, PRECISION)
    tl.store(r_ptr + t[None, :] * (H * D) + d[:, None], u.to(OPERAND), mask=inside)
    G = tl.trans(channels_of(do_ptr, t, d, row, H, D).to(OPERAND))
    y = loaded_times(G, PM, TERMS, PRECISION)
    tl.store(x_ptr + t[None, :] * (H * D) + d[:, None], y.to(OPERAND), mask=inside)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def prepare_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, w_ptr, r_ptr, z_ptr, x_ptr, decay_ptr, later_ptr,
    scale, num_seqs, total, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    t = tl.arange(0, C)
    if tl.program_id(0) == 0:  # ones from each token on, for within_kernel
        ones = tl.where(t[:, None] <= t[None, :], 1.0, 0.0).to(OPERAND)
        tl.store(later_ptr + t[:, None] * C + t[None, :], ones)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return

    # From here on all offsets are within the chunk, and fit into 32 bits.
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HK + h // (H // HK)) * D
    v_ptr += (first * HV + h // (H // HV)) * D
    do_ptr += (first * H + h) * D
    r_ptr += (first * H + h) * D
    x_ptr += (first * H + h) * D
    w_ptr += (slot * H + h) * (C * max(C, D))
    z_ptr += (slot * H + h) * (C * D)
    decay_ptr += (slot * H + h) * (4 * C)

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    row = t < count
    beta = write_gates(beta_ptr, first * H + h + t * H, row, HAS_BETA)

    # Decays: from the chunk's start to each token, and from each token to the end.
    fall, resets = log_decay(g_ptr, first * H + h + t * H, row, GATE, C)
    gamma = tl.exp2(resets + fall)
    last = t == C - 1
    to_end = tl.sum(tl.where(last, resets, 0.0), axis=0) - resets + tl.sum(tl.where(last, fall, 0.0), axis=0) - fall
    to_end = tl.exp2(tl.minimum(to_end, 0.0))
    tl.store(decay_ptr + t, gamma)
    tl.store(decay_ptr + C + t, gamma * beta)
    tl.store(decay_ptr + 2 * C + t, to_end)
    tl.store(decay_ptr + 3 * C + t, beta)

    # M = (I + diag(b) N)^-1 and (I + N diag(b))^-1 = diag(b)^-1 M diag(b), for N = strict_lower(Gamma * K K^T): so one
    # inverse does for both, if no b is 0. `unit_lower_inverse` never looks at the rest of N.
    KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BK)
    b = tl.where(tl.abs(beta) < LEAST, LEAST, beta)
    M = unit_lower_inverse(KK * decays_between(KK, fall, resets) * b[:, None], C, TERMS, PRECISION)

    # P M for P = Gamma * Q K^T (lower), which goes through memory: it is to be a left operand.
    QK = scores_of(q_ptr, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BK)
    P = scaled(
        QK * decays_between(QK, fall, resets), scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED
    )  # fmt: skip
    P = tl.where(t[:, None] >= t[None, :], P, 0.0)
    scratch = w_ptr + t[:, None] * C + t[None, :]
    tl.store(scratch, P.to(OPERAND))
    tl.debug_barrier()
    PM = loaded_times(tl.load(scratch), M, TERMS, PRECISION)
    tl.debug_barrier()

    # The errors of the tokens are r = E V - E diag(gamma) K S^T, what they write is beta r: the first part waits in r,
    # the second's factor is -w. The gradient of what they write is M^T (P^T G + diag(Gamma_C,:) K D^T): in x and z.
    E = M * b[None, :] / b[:, None]
    E_of_state = tl.trans(E * gamma[None, :])
    E = tl.trans(E)
    M *= to_end[:, None]
    if TERMS == 1:  # a loop that is unrolled makes ptxas give up on registers
        for d_first in range(0, D, BD):
            store_products(
                k_ptr, v_ptr, do_ptr, w_ptr, z_ptr, r_ptr, x_ptr, E_of_state, M, E, PM, d_first, t, row,
                HK, HV, H, D, OPERAND, TERMS, PRECISION, BD,
            )  # fmt: skip
    else:
        for d_first in tl.static_range(0, D, BD):
            store_products(
                k_ptr, v_ptr, do_ptr, w_ptr, z_ptr, r_ptr, x_ptr, E_of_state, M, E, PM, d_first, t, row,
                HK, HV, H, D, OPERAND, TERMS, PRECISION, BD,
            )  # fmt: skip
