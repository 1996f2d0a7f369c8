"""The rest of dg: what reaches each gate beside the states at both ends of a chunk, and steep gates."""

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
def gradients_of_states(
    cu_seqlens_ptr, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, first, count, slot, h, num_seqs, total,
    H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, KEY_SLICES: tl.constexpr,
):  # fmt: skip
    """of_start, of_end and through: over the key channels, with what given states lose as operands."""
    t = tl.arange(0, C)
    of_start, of_end, through = tl.zeros([C], dtype=tl.float32), tl.zeros([C], dtype=tl.float32), 0.0
    for part in tl.static_range(KEY_SLICES):
        sums = sums_ptr + ((slot * H + h) * KEY_SLICES + part) * (4 * C)
        of_start += tl.load(sums + t) - tl.load(sums + C + t)
        of_end += tl.load(sums + 2 * C + t)
        through += tl.load(sums + 3 * C)
    if tl.float32 != OPERAND:  # an input is not to be rounded: `through` may be small
        n, state = sequence_of(cu_seqlens_ptr, slot, num_seqs, total, C), (slot * H + h) * (D * D)
        if HAS_INITIAL and first == start_of(cu_seqlens_ptr, n, total):
            through += product_with_rest(initial_ptr, ends_ptr + state, n, h, D, K_FIRST, OPERAND, H, BD)
        if HAS_DHT and first + count == start_of(cu_seqlens_ptr, n + 1, total):
            through += product_with_rest(dht_ptr, starts_ptr + state, n, h, D, K_FIRST, OPERAND, H, BD)
    return of_start, of_end, through


@triton.jit(do_not_specialize=["num_seqs", "total"])
def gates_kernel(
    g_ptr, cu_seqlens_ptr, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, dg_ptr, num_seqs, total,
    H: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr,
    K_FIRST: tl.constexpr, OPERAND: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, KEY_SLICES: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and a head. It adds up what beside_kernel found for each slice of the key channels."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    if count <= 0:  # a slot that no chunk has
        return
    t = tl.arange(0, C)
    row = t < count
    at = first * H + h + t * H
    of_start, of_end, through = gradients_of_states(
        cu_seqlens_ptr, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, first, count, slot, h, num_seqs, total,
        H, D, HAS_INITIAL, HAS_DHT, K_FIRST, OPERAND, C, BD, KEY_SLICES,
    )  # fmt: skip
    fall, resets = log_decay(g_ptr, at, row, GATE, C)
    alpha, _ = steep_gates(g_ptr, at, row, GATE, C)
    dg = tl.load(dg_ptr + at, mask=row, other=0.0)
    tl.store(dg_ptr + at, dg + gates_beside_states(of_start, of_end, through, fall, resets, alpha, C), mask=row)


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
def steep_kernel(
    q_ptr, k_ptr, g_ptr, beta_ptr, do_ptr, cu_seqlens_ptr, initial_ptr, dht_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr,
    sums_ptr, dg_ptr, scale, num_seqs, total,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_DHT: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, KEY_SLICES: tl.constexpr,
):  # fmt: skip
    """dg of steep gates, for linear gates: both parts of each decay are formed without the gate. Few chunks have one,
    and these start again."""
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    row = t < count
    at = first * H + h + t * H
    _, steep = steep_gates(g_ptr, at, row, "linear", C)
    if tl.max(steep.to(tl.int32), axis=0) == 0:  # so it is for a slot that no chunk has
        return
    of_start, of_end, through = gradients_of_states(
        cu_seqlens_ptr, initial_ptr, dht_ptr, starts_ptr, ends_ptr, sums_ptr, first, count, slot, h, num_seqs, total,
        H, D, HAS_INITIAL, HAS_DHT, K_FIRST, OPERAND, C, BD, KEY_SLICES,
    )  # fmt: skip
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
