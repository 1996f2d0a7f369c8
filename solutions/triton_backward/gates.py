"""dbeta, and the rest of dg: what reaches each gate beside the states at both ends of a chunk, and steep gates."""

import triton
import triton.language as tl
from chunks import sequence_of, start_of, tokens_of
from decays import entry, from_token, log_decay, steep_gates, to_token
from edges import product_with_rest
from rows import scores_of, write_gates


@triton.jit
def gates_beside_states(of_start, of_end, through, fall, resets, alpha, C: tl.constexpr):
    """What reaches each gate through the decays between the tokens and the states on both ends of the chunk.

    of_start [C]: the gradient of gamma, by which the state at the start reaches a token. of_end [C]: that of the decay
    from a token to the end. through: that of gamma_C, by which the state at the start reaches the end.
    """
    t = tl.arange(0, C)
    gamma, to_end = from_token(fall, resets, t, -1), to_token(fall, resets, t, C - 1)
    later = tl.sum(tl.where(t[None, :] >= t[:, None], (gamma * of_start)[None, :], 0.0), axis=1)
    earlier = tl.sum(tl.where(t[None, :] < t[:, None], (to_end * of_end)[None, :], 0.0), axis=1)
    return (later + earlier + entry(gamma, t, C - 1) * through) / alpha


@triton.jit
def gradient_of_decays(
    q_ptr, k_ptr, do_ptr, r_ptr, dv_ptr, beta, scale, t, row,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """dGamma [C, C] of one head once more (within.py)."""
    dP = scores_of(do_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD) * scale * beta[None, :]
    dP *= scores_of(q_ptr, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BD)
    dA = scores_of(dv_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD) * -beta[None, :]
    dA *= scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    return tl.where(t[:, None] >= t[None, :], dP, 0.0) + tl.where(t[:, None] > t[None, :], dA, 0.0)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def gates_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, initial_ptr, r_ptr, dv_ptr, ends_ptr, of_walk_ptr,
    beside_ptr, dg_ptr, dbeta_ptr, scale, num_seqs, total,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, HAS_BETA: tl.constexpr,
    HAS_INITIAL: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BD: tl.constexpr, VALUE_SLICES: tl.constexpr, KEY_SLICES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and a head. It adds up what backward_kernel found for each slice of the value channels, and
    beside_kernel for each slice of the key channels."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    row = t < count
    at = first * H + h + t * H
    of_start, of_end, through = tl.zeros([C], dtype=tl.float32), tl.zeros([C], dtype=tl.float32), 0.0
    dbeta = tl.load(dbeta_ptr + at, mask=row, other=0.0)
    for part in tl.static_range(VALUE_SLICES):
        sums = of_walk_ptr + ((slot * H + h) * VALUE_SLICES + part) * (C + 1)
        dbeta += tl.load(sums + t)
        through += tl.load(sums + C)
    tl.store(dbeta_ptr + at, dbeta, mask=row)
    for part in tl.static_range(KEY_SLICES):
        sums = beside_ptr + ((slot * H + h) * KEY_SLICES + part) * (2 * C)
        of_start += tl.load(sums + t)
        of_end += tl.load(sums + C + t)
    if HAS_INITIAL and tl.float32 != OPERAND:  # an input is not to be rounded: `through` may be small
        n = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C)
        if first == start_of(cu_seqlens_ptr, n, total):
            through += product_with_rest(
                initial_ptr, ends_ptr + (slot * H + h) * (D * D), n, h, D, K_FIRST, OPERAND, H, BD
            )  # fmt: skip
    fall, resets = log_decay(g_ptr, at, row, GATE, C)
    alpha, steep = steep_gates(g_ptr, at, row, GATE, C)
    dg = tl.load(dg_ptr + at, mask=row, other=0.0)
    dg += gates_beside_states(of_start, of_end, through, fall, resets, alpha, C)

    # A steep gate: both parts of each decay are formed without it. Few chunks have one, and these start again.
    if GATE == "linear" and tl.max(steep.to(tl.int32), axis=0) > 0:
        beta = write_gates(beta_ptr, at, row, HAS_BETA)
        dGamma = gradient_of_decays(
            q_ptr + (first * HQ + h // (H // HQ)) * D, k_ptr + (first * HK + h // (H // HK)) * D,
            do_ptr + (first * H + h) * D, r_ptr + (first * H + h) * D, dv_ptr + (first * H + h) * D, beta, scale,
            t, row, HQ, HK, H, D, OPERAND, PRECISION, C, BD,
        )  # fmt: skip
        gamma = from_token(fall, resets, t, -1)
        for token in range(count):
            if tl.max(tl.where(t == token, steep.to(tl.int32), 0), axis=0) > 0:
                after, until = from_token(fall, resets, t, token), to_token(fall, resets, t, token - 1)
                start = tl.where(token > 0, entry(gamma, t, token - 1), 1.0)
                end = entry(after, t, C - 1)
                found = tl.sum(after * tl.sum(dGamma * until[None, :], axis=1), axis=0)
                found += start * tl.sum(after * of_start, axis=0) + end * tl.sum(until * of_end, axis=0)
                dg = tl.where(t == token, found + start * end * through, dg)
    tl.store(dg_ptr + at, dg, mask=row)
