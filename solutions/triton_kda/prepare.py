"""What needs no state, of all chunks at once."""

import triton
import triton.language as tl
from chunks import sequence_of, slot_of, start_of
from gates import log2_decay
from inverse import across, unit_lower_inverse
from products import product
from scores import far_scores, near_scores, parted_scores


@triton.jit
def gates_of(
    g_ptr, bias_ptr, rate, lower_bound, h, row, i, d, K_SIZE: tl.constexpr, H: tl.constexpr, GATE: tl.constexpr
):
    """Log2 of the decays of some of the chunk's tokens and channels; 0 past the end of the sequence. Tokens i, where
    they are inside of it, and channels d: tensors that are broadcast."""
    d_in = d < K_SIZE
    inside = row & d_in
    gates = tl.zeros(inside.shape, dtype=tl.float32)
    if GATE != "none":
        gates += tl.load(g_ptr + i * (H * K_SIZE) + d, mask=inside, other=0.0).to(tl.float32)
    if GATE == "none" or GATE == "log":
        gates = log2_decay(gates, 0.0, rate, lower_bound, GATE)
    else:
        bias = tl.load(bias_ptr + h * K_SIZE + d, mask=d_in, other=0.0).to(tl.float32)
        gates = tl.where(row, log2_decay(gates, bias, rate, lower_bound, GATE), 0.0)
    return gates


@triton.jit
def ask_for(x_ptr, t, STRIDE: tl.constexpr, SIZE: tl.constexpr, LINES: tl.constexpr):
    """Asks for rows t of a matrix, LINES of 64 bytes each, so that they are in the L2 cache when they are loaded."""
    at = t[:, None] * STRIDE + tl.minimum(tl.arange(0, LINES) * 32, SIZE - 1)[None, :]
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [x_ptr + at], tl.int32, False, 1)


@triton.jit
def factors(q_ptr, k_ptr, row, i, HQ: tl.constexpr, K_SIZE: tl.constexpr, BK: tl.constexpr):
    """1 / sqrt(|x|^2 + 1e-6) of the chunk's queries and keys."""
    d = tl.arange(0, BK)[None, :]
    inside = row[:, None] & (d < K_SIZE)
    Q = tl.load(q_ptr + i * (HQ * K_SIZE) + d, mask=inside, other=0.0).to(tl.float32)
    K = tl.load(k_ptr + i * (HQ * K_SIZE) + d, mask=inside, other=0.0).to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(Q * Q, axis=1) + 1e-6), 1.0 / tl.sqrt(tl.sum(K * K, axis=1) + 1e-6)


@triton.jit
def kind_of(g, C: tl.constexpr):
    """How much these channels of a chunk decay: 1 where by no more than 2^-64 over all of it, n where by no more than
    2^-70 over 2^(7 - n) tokens, from 32 down to 2, and 0 where by more; the exponents are 0.4% off at most.
    """
    kind = 1
    if tl.min(g) < -64.0 / C:
        # Sums over 2, 4, .. 64 tokens are one product with ones and zeros: 63 rows, those of 2 first.
        r, t = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        size = 1 + (r >= 32).to(tl.int32) + (r >= 48).to(tl.int32) + (r >= 56).to(tl.int32)
        size += (r >= 60).to(tl.int32) + (r >= 62).to(tl.int32)  # log2 of the tokens
        which = r - C + (C >> (size - 1))
        sums = tl.dot((t >> size == which).to(tl.bfloat16), g.to(tl.bfloat16))
        kind = tl.max(tl.where(sums < tl.where(size == 6, -64.0, -70.0), 8 - size, 1))
        kind = tl.where(kind == 7, 0, kind)
    return kind


@triton.jit(do_not_specialize=["num_seqs", "total", "lower_bound"])
def prepare_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, rate_ptr, bias_ptr, lower_bound, cu_seqlens_ptr,
    u_ptr, w_ptr, from_start_ptr, to_end_ptr, P_ptr, fall_ptr, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr, GATE: tl.constexpr,
    BETA: tl.constexpr, NORM: tl.constexpr, GUARD: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The heads of one chunk run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    first = start_of(cu_seqlens_ptr, n, total) + (slot - slot_of(cu_seqlens_ptr, n, total, C)) * C
    count = tl.minimum(start_of(cu_seqlens_ptr, n + 1, total) - first, C).to(tl.int32)
    if count <= 0:  # a slot that no chunk has
        return

    # From here on all offsets are within the chunk, and fit into 32 bits.
    q_ptr += (first * HQ + h // (H // HQ)) * K_SIZE
    k_ptr += (first * HQ + h // (H // HQ)) * K_SIZE
    v_ptr += (first * H + h) * V_SIZE
    if GATE != "none":
        g_ptr += (first * H + h) * K_SIZE
    u_ptr += (first * H + h) * V_SIZE
    w_ptr += (slot * H + h) * (C * K_SIZE)
    from_start_ptr += (slot * H + h) * (C * K_SIZE)
    to_end_ptr += (slot * H + h) * (C * K_SIZE)
    P_ptr += (slot * H + h) * (C * C)
    fall_ptr += (slot * H + h) * K_SIZE

    if AHEAD:
        there = tl.minimum(tl.arange(0, C), count - 1)
        ask_for(k_ptr, there, HQ * K_SIZE, K_SIZE, BK // 32)
        ask_for(q_ptr, there, HQ * K_SIZE, K_SIZE, BK // 32)
        ask_for(v_ptr, there, H * V_SIZE, V_SIZE, BK // 32)

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    t = tl.arange(0, C)
    i, j = t[:, None], t[None, :]
    row = t < count
    if NORM:
        q_factor, k_factor = factors(q_ptr, k_ptr, row, i, HQ, K_SIZE, BK)
    rate = 0.0
    if GATE == "softplus" or GATE == "bounded":
        rate = tl.exp(tl.load(rate_ptr + h).to(tl.float32))

    # Pairs of tokens inside of blocks of 16 first, of channels that forget: sums over all channels, and little else in
    # registers. Some channels may decay so little that a few products are for all pairs of the chunk, further below.
    B: tl.constexpr = 16
    N: tl.constexpr = C // B
    QK_near = tl.zeros([N, B, B], dtype=tl.float32)
    KK_near = tl.zeros([N, B, B], dtype=tl.float32)
    kinds = 0  # three bits for each BD channels
    for d_first in tl.range(0, K_SIZE, BD, num_stages=1):
        d = d_first + tl.arange(0, BD)
        g = gates_of(g_ptr, bias_ptr, rate, lower_bound, h, row[:, None], i, d[None, :], K_SIZE, H, GATE)
        kind = kind_of(g, C) if GUARD else 0
        kinds |= kind << (3 * (d_first // BD))
        if kind == 0 or kind >= 5:
            inside = row[:, None] & (d < K_SIZE)[None, :]
            K = tl.load(k_ptr + i * (HQ * K_SIZE) + d[None, :], mask=inside, other=0.0).to(tl.float32)
            Q = tl.load(q_ptr + i * (HQ * K_SIZE) + d[None, :], mask=inside, other=0.0).to(tl.float32)
            safe = tl.where(kind == 0, 0, 8 - kind)  # blocks of 8 or 4 tokens
            QK_near, KK_near = near_scores(QK_near, KK_near, Q, K, g, safe, N, B)
    near = (i // B == j // B) & (i > j)
    QK = tl.where(near, across(QK_near, N, B), 0.0)
    KK = tl.where(near, across(KK_near, N, B), 0.0)
    if NORM:
        QK *= q_factor[:, None] * k_factor[None, :]
        KK *= k_factor[:, None] * k_factor[None, :]

    # A token's query and key have no decay in between: their product, `own`, stays in float32, for a sequence of one
    # token has no other term.
    #
    # All channels: their decays from the chunk's start to each token, and from there to its end, with q and k for
    # chain_kernel; and pairs that are still missing. gamma * K waits in the place of w. Tiles are [C / 4, 4, BD]: so a
    # thread has four tokens in a row of its channels, and adds up their gates by itself.
    own = tl.zeros([C // 4, 4], dtype=tl.float32)
    i_4 = 4 * tl.arange(0, C // 4)[:, None, None] + tl.arange(0, 4)[None, :, None]
    row_4 = i_4 < count
    if NORM:
        q_factors, k_factors = tl.reshape(q_factor, [C // 4, 4]), tl.reshape(k_factor, [C // 4, 4])
    for d_first in tl.range(0, K_SIZE, BD, num_stages=1):
        d = d_first + tl.arange(0, BD)
        d_in = d < K_SIZE
        d_4, d_in_4 = d[None, None, :], d_in[None, None, :]
        inside = row_4 & d_in_4
        at = i_4 * K_SIZE + d_4
        K_4 = tl.load(k_ptr + i_4 * (HQ * K_SIZE) + d_4, mask=inside, other=0.0).to(tl.float32)
        Q_4 = tl.load(q_ptr + i_4 * (HQ * K_SIZE) + d_4, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            K_4 *= k_factors[:, :, None]
            Q_4 *= q_factors[:, :, None]
        own += tl.sum(Q_4 * K_4, axis=2)
        g = gates_of(g_ptr, bias_ptr, rate, lower_bound, h, row_4, i_4, d_4, K_SIZE, H, GATE)
        of_four = tl.sum(g, axis=1)
        before = tl.cumsum(of_four, axis=0) - of_four
        G_4 = tl.cumsum(g, axis=1) + before[:, None, :]
        whole = tl.sum(of_four, axis=0)
        gamma = tl.exp2(G_4)
        K_gamma, Q_gamma = (K_4 * gamma).to(tl.bfloat16), (Q_4 * gamma).to(tl.bfloat16)
        tl.store(w_ptr + at, K_gamma, mask=d_in_4)
        tl.store(from_start_ptr + at, Q_gamma, mask=d_in_4)
        tl.store(to_end_ptr + at, (K_4 * tl.exp2(whole[None, None, :] - G_4)).to(tl.bfloat16), mask=d_in_4)
        tl.store(fall_ptr + d, tl.exp2(whole), mask=d_in)
        kind = (kinds >> (3 * (d_first // BD))) & 7
        if kind == 1:
            back = tl.trans(tl.reshape((K_4 * tl.exp2(-G_4)).to(tl.bfloat16), [C, BD]))
            QK = tl.dot(tl.reshape(Q_gamma, [C, BD]), back, acc=QK)
            KK = tl.dot(tl.reshape(K_gamma, [C, BD]), back, acc=KK)
        else:
            Q, K, G = tl.reshape(Q_4, [C, BD]), tl.reshape(K_4, [C, BD]), tl.reshape(G_4, [C, BD])
            if kind > 1 and kind < 5:
                QK, KK = parted_scores(QK, KK, Q, K, G, i, 1 << (kind - 2), C)
            else:
                QK, KK = far_scores(QK, KK, Q, K, G, i, j, C)
    P = tl.where(i > j, QK, tl.where(i == j, tl.reshape(own, [C])[:, None], 0.0))
    tl.store(P_ptr + i * C + j, P.to(tl.bfloat16))

    # T = (I + A)^-1 diag(beta), A = strict_lower(diag(beta) KK). beta is loaded this late because registers for it, in
    # several layouts, would wait for all of the above.
    beta = tl.zeros([C], dtype=tl.float32)
    if BETA == "none":
        beta += tl.where(row, 1.0, 0.0)
    else:
        beta += tl.load(beta_ptr + first * H + h + t * H, mask=row, other=0.0).to(tl.float32)
        if BETA == "sigmoid":
            beta = tl.where(row, 1.0 / (1.0 + tl.exp(-beta)), 0.0)
    T = unit_lower_inverse(tl.where(i > j, KK, 0.0) * beta[:, None], C, 2, "ieee") * beta[None, :]

    # u = T V and w = T (gamma * K), some channels at a time, the tiles of both in one loop: loads are ahead. w is
    # stored as -w, so that chain_kernel adds it to u. Past the end of the sequence gamma * K is zero already.
    tl.debug_barrier()  # other threads may have written what is read of gamma * K
    TILES: tl.constexpr = BK // BD
    for tile in tl.range(0, 2 * TILES, num_stages=3):
        of_v = tile < TILES
        d = (tile % TILES) * BD + tl.arange(0, BD)
        inside = row[:, None] & (d < K_SIZE)[None, :]
        x_ptr, y_ptr = tl.where(of_v, v_ptr, w_ptr), tl.where(of_v, u_ptr, w_ptr)
        at = i * tl.where(of_v, H * V_SIZE, K_SIZE) + d[None, :]
        X = tl.load(x_ptr + at, mask=inside, other=0.0)
        Y = product(T, X, 2, "ieee") * tl.where(of_v, 1.0, -1.0)
        tl.store(y_ptr + at, Y.to(tl.bfloat16), mask=inside)
