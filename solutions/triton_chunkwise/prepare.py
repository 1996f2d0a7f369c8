"""What needs no state, of all chunks at once: u = T V, w = T diag(gamma) K, P = Gamma * Q K^T, and the decays."""

import triton
import triton.language as tl
from chunks import sequence_of, slot_of, start_of
from inverse import unit_lower_inverse
from products import product

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
RESET: tl.constexpr = tl.constexpr(-1024.0)  # whole numbers, so that sums of them are exact


@triton.jit
def log_decay(g_ptr, at, inside, GATE: tl.constexpr, C: tl.constexpr):
    """From the chunk's start to each token: the sum of log2 alpha, and RESET for every reset (alpha = 0). Both [C].

    A reset stays out of the first, which so remains exact beside it. alpha_{j+1} .. alpha_i is then 2 to the difference
    of the second plus that of the first, in this order: where there is a reset between, 2^-1024 and less are 0.
    """
    if GATE == "linear":
        x = tl.log2(tl.load(g_ptr + at, mask=inside, other=1.0))
    elif GATE == "log":
        x = tl.load(g_ptr + at, mask=inside, other=0.0) * LOG2_E
    else:
        x = tl.zeros([C], dtype=tl.float32)
    reset = x < -150.0  # alpha is 0 in float32; a larger number would drown its neighbours in the sums
    return tl.cumsum(tl.where(reset, 0.0, x), axis=0), tl.cumsum(tl.where(reset, RESET, 0.0), axis=0)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def prepare_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, u_ptr, w_ptr, P_ptr, decay_ptr, num_seqs, total,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr,
    K_SIZE: tl.constexpr, V_SIZE: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    first = start_of(cu_seqlens_ptr, n, total) + (slot - slot_of(cu_seqlens_ptr, n, total, C)) * C
    count = tl.minimum(start_of(cu_seqlens_ptr, n + 1, total) - first, C).to(tl.int32)
    if count <= 0:  # a slot that no chunk has
        return

    # From here on all offsets are within the chunk, and fit into 32 bits.
    q_ptr += (first * HQ + h // (H // HQ)) * K_SIZE
    k_ptr += (first * HK + h // (H // HK)) * K_SIZE
    v_ptr += (first * HV + h // (H // HV)) * V_SIZE
    u_ptr += (first * H + h) * V_SIZE
    w_ptr += (slot * H + h) * (C * K_SIZE)
    P_ptr += (slot * H + h) * (C * C)
    decay_ptr += (slot * H + h) * (2 * C)

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    t = tl.arange(0, C)
    row = t < count
    j = tl.arange(0, BK)
    inside = row[:, None] & (j < K_SIZE)[None, :]
    K = tl.load(k_ptr + t[:, None] * (HK * K_SIZE) + j[None, :], mask=inside, other=0.0).to(OPERAND)
    Q = tl.load(q_ptr + t[:, None] * (HQ * K_SIZE) + j[None, :], mask=inside, other=0.0).to(OPERAND)
    beta = tl.where(row, 1.0, 0.0)
    if HAS_BETA:
        beta = tl.load(beta_ptr + first * H + h + t * H, mask=row, other=0.0)

    # Decays: gamma from the chunk's start to each token, and from each token to the end.
    fall, resets = log_decay(g_ptr, first * H + h + t * H, row, GATE, C)
    gamma = tl.exp2(resets + fall)
    last = t == C - 1
    to_end = tl.sum(tl.where(last, resets, 0.0), axis=0) - resets + tl.sum(tl.where(last, fall, 0.0), axis=0) - fall
    tl.store(decay_ptr + t, gamma)
    tl.store(decay_ptr + C + t, tl.exp2(tl.minimum(to_end, 0.0)))

    # P = Gamma * Q K^T. Gamma starts from zeros of that product, for then it is formed where the product lies: by
    # itself Triton lays it out otherwise, and carries it through shared memory.
    QK = tl.dot(Q, tl.trans(K), input_precision=PRECISION)
    Gamma = QK * 0.0 + resets[:, None] - resets[None, :] + fall[:, None] - fall[None, :]
    Gamma = tl.exp2(tl.minimum(Gamma, 0.0))
    P = tl.where(t[:, None] >= t[None, :], QK * Gamma, 0.0)
    tl.store(P_ptr + t[:, None] * C + t[None, :], P.to(OPERAND))

    # T = (I + A)^-1 diag(beta), A = strict_lower(diag(beta) (Gamma * K K^T)): the rest of A is never looked at.
    A = tl.dot(K, tl.trans(K), input_precision=PRECISION) * Gamma * beta[:, None]
    T = unit_lower_inverse(A, C, TERMS, PRECISION) * beta[None, :]

    # u = T V, some channels at a time.
    for d_first in tl.static_range(0, V_SIZE, BD):
        d = d_first + tl.arange(0, BD)
        d_in = d < V_SIZE
        V = tl.load(v_ptr + t[:, None] * (HV * V_SIZE) + d[None, :], mask=row[:, None] & d_in[None, :], other=0.0)
        u = product(T, V.to(OPERAND), TERMS, PRECISION)
        tl.store(u_ptr + t[:, None] * (H * V_SIZE) + d[None, :], u.to(OPERAND), mask=row[:, None] & d_in[None, :])

    # w = T diag(gamma) K, stored as -w, so that chain_kernel adds it to u.
    T *= gamma[None, :]
    for d_first in tl.static_range(0, K_SIZE, BD):
        d = d_first + tl.arange(0, BD)
        d_in = d < K_SIZE
        K = tl.load(k_ptr + t[:, None] * (HK * K_SIZE) + d[None, :], mask=row[:, None] & d_in[None, :], other=0.0)
        w = product(T, K.to(OPERAND), TERMS, PRECISION)
        tl.store(w_ptr + t[:, None] * K_SIZE + d[None, :], (-w).to(OPERAND), mask=d_in[None, :])
