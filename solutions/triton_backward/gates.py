"""The rest of dg: what reaches each gate beside the states at both ends of a chunk, and steep gates."""

import triton
import triton.language as tl
from chunks import start_of, tokens_of
from decays import entry, from_token, log_decay, steep_gates, to_token
from rows import scores_of, write_gates


@triton.jit
def summed(sums_ptr, at, t, C: tl.constexpr, SLICES: tl.constexpr, APART: tl.constexpr):
    """Over the slices of a (chunk, head): of a row [C] for each, so far apart."""
    found = tl.zeros([C], dtype=tl.float32)
    for part in tl.static_range(SLICES):
        found += tl.load(sums_ptr + (at * SLICES + part) * APART + t, mask=t >= 0, other=0.0)
    return found


@triton.jit
def summed_of_heads(sums_ptr, at, t, SLICES: tl.constexpr, APART: tl.constexpr):
    """The same of some heads: [C, HEADS]."""
    rows = sums_ptr + at[None, :] * (SLICES * APART) + t[:, None]
    found = tl.load(rows, mask=t[:, None] >= 0, other=0.0)
    for part in tl.static_range(1, SLICES):
        found += tl.load(rows + part * APART, mask=t[:, None] >= 0, other=0.0)
    return found


@triton.jit(do_not_specialize=["num_seqs", "total"])
def gates_kernel(
    g_ptr, cu_seqlens_ptr, decay_ptr, between_ptr, sums_ptr, of_walk_ptr, dg_ptr, dbeta_ptr, num_seqs, total,
    H: tl.constexpr, GATE: tl.constexpr, C: tl.constexpr, KEY_SLICES: tl.constexpr, VALUE_SLICES: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and some heads: gates of a token lie side by side. It adds up what within_kernel found,
    and for each slice gradients_kernel and backward_kernel.

    of_start [C]: the gradient of gamma, by which the state at the start reaches a token. of_end [C]: that of the decay
    from a token to the end. through: that of gamma_C, by which the state at the start reaches the end.
    """
    h = tl.program_id(0) % (H // HEADS) * HEADS + tl.arange(0, HEADS)
    slot = (tl.program_id(0) // (H // HEADS)).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    behind = slot * C + t  # rows behind the last sequence belong to none
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros, to = tl.zeros([C, HEADS], dtype=tl.float32), behind[:, None] * H + h[None, :]
        tl.store(dg_ptr + to, zeros, mask=none[:, None] & (h >= 0)[None, :])
        tl.store(dbeta_ptr + to, zeros, mask=none[:, None] & (h >= 0)[None, :])
    if count <= 0:  # a slot that no chunk has
        return
    row = (t < count)[:, None] & (h >= 0)[None, :]
    # From here on all offsets are within the chunk, and fit into 32 bits.
    dg_ptr += first * H
    dbeta_ptr += first * H
    decay_ptr += slot * (H * 8 * C)
    between_ptr += slot * (H * C)
    sums_ptr += slot * (H * KEY_SLICES * (2 * C + 4))
    of_walk_ptr += slot * (H * VALUE_SLICES * C)
    to = t[:, None] * H + h[None, :]
    decay, own = decay_ptr + h[None, :] * (8 * C) + t[:, None], h[None, :] * C + t[:, None]
    through = tl.zeros([HEADS], dtype=tl.float32)
    for part in tl.static_range(KEY_SLICES):
        through += tl.load(sums_ptr + (h * KEY_SLICES + part) * (2 * C + 4) + 2 * C)
    of_start = tl.load(decay) * summed_of_heads(sums_ptr, h, t, KEY_SLICES, 2 * C + 4)
    of_end = summed_of_heads(sums_ptr + C, h, t - 1, KEY_SLICES, 2 * C + 4)  # of the token before
    of_end *= tl.load(decay + 2 * C - 1, mask=(t > 0)[:, None], other=0.0)
    dg = tl.load(between_ptr + own) + (tl.load(decay_ptr + h * (8 * C) + C - 1) * through)[None, :]
    dg += tl.cumsum(of_start, axis=0, reverse=True) + tl.cumsum(of_end, axis=0)
    if GATE == "linear":
        alpha, _ = steep_gates(g_ptr + first * H, to, row, GATE, C)
        dg /= alpha
    tl.store(dg_ptr + to, dg, mask=row)
    of_beta = summed_of_heads(of_walk_ptr, h, t, VALUE_SLICES, C) * tl.load(decay + 6 * C)  # they have the factor b
    tl.store(dbeta_ptr + to, of_beta, mask=row)


@triton.jit
def gradient_of_decays(
    q_ptr, k_ptr, do_ptr, r_ptr, dv_ptr, beta, scale, t, row,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dGamma [C, C] of one head once more (gradients.py)."""
    dP = scores_of(do_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD) * scale * beta[None, :]
    dP *= scores_of(q_ptr, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BD)
    dA = scores_of(dv_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD) * -beta[None, :]
    dA *= scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    return tl.where(t[:, None] >= t[None, :], dP, 0.0) + tl.where(t[:, None] > t[None, :], dA, 0.0)


@triton.jit
def gradients_of_steep_gates(
    q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, r_ptr, dv_ptr, sums_ptr, dg_ptr, scale, first, count, slot, h,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, KEY_SLICES: tl.constexpr,
):  # fmt: skip
    """Both parts of each decay are formed without the gate."""
    t = tl.arange(0, C)
    row = t < count
    at = first * H + h + t * H
    _, steep = steep_gates(g_ptr, at, row, "linear", C)
    through = 0.0
    for part in tl.static_range(KEY_SLICES):
        through += tl.load(sums_ptr + ((slot * H + h) * KEY_SLICES + part) * (2 * C + 4) + 2 * C)
    of_start = summed(sums_ptr, slot * H + h, t, C, KEY_SLICES, 2 * C + 4)
    of_end = summed(sums_ptr + C, slot * H + h, t, C, KEY_SLICES, 2 * C + 4)
    beta = write_gates(beta_ptr, at, row, HAS_BETA)
    dGamma = gradient_of_decays(
        q_ptr + (first * HQ + h // (H // HQ)) * D, k_ptr + (first * HK + h // (H // HK)) * D,
        do_ptr + (first * H + h) * D, r_ptr + (first * H + h) * D, dv_ptr + (first * H + h) * D, beta, scale,
        t, row, HQ, HK, H, D, OPERAND, PRECISION, C, BD,
    )  # fmt: skip
    fall, resets = log_decay(g_ptr, at, row, "linear", C)
    gamma = from_token(fall, resets, t, -1)
    dg = tl.zeros([C], dtype=tl.float32)
    for token in range(count):
        if tl.max(tl.where(t == token, steep.to(tl.int32), 0), axis=0) > 0:
            after, until = from_token(fall, resets, t, token), to_token(fall, resets, t, token - 1)
            start = tl.where(token > 0, entry(gamma, t, token - 1), 1.0)
            end = entry(after, t, C - 1)
            found = tl.sum(after * tl.sum(dGamma * until[None, :], axis=1), axis=0)
            found += start * tl.sum(after * of_start, axis=0) + end * tl.sum(until * of_end, axis=0)
            dg = tl.where(t == token, found + start * end * through, dg)
    tl.store(dg_ptr + at, dg, mask=row & steep)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def steep_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, r_ptr, dv_ptr, sums_ptr, dg_ptr, scale,
    num_seqs, total,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, KEY_SLICES: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """dg of steep gates, for linear gates. A program has a chunk and some heads. Few chunks have such a gate."""
    before, slot = tl.program_id(0) % (H // HEADS) * HEADS, (tl.program_id(0) // (H // HEADS)).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    at = first * H + t[:, None] * H + before + tl.arange(0, HEADS)[None, :]
    _, steep = steep_gates(g_ptr, at, (t < count)[:, None], "linear", C)
    steep = tl.max(steep.to(tl.int32), axis=0)
    if tl.max(steep, axis=0) == 0:  # so it is for a slot that no chunk has
        return
    for n in range(HEADS):
        if tl.max(tl.where(tl.arange(0, HEADS) == n, steep, 0), axis=0) > 0:
            gradients_of_steep_gates(
                q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, r_ptr, dv_ptr, sums_ptr, dg_ptr, scale, first,
                count, slot, before + n, HQ, HK, H, D, HAS_BETA, OPERAND, PRECISION, C, BD, KEY_SLICES,
            )  # fmt: skip
