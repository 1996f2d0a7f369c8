"""The two walks over the chunks of a sequence, with the state, or its gradient, of some value channels in registers.

Both are kept as [key channels, value channels]: so each product has on its left what was loaded.
"""

import triton
import triton.language as tl
from chunks import slot_of, start_of
from products import rest_of
from rows import rest_at, scaled, state_at


@triton.jit
def chunks_of(cu_seqlens_ptr, n, total, C: tl.constexpr):
    """The first token, the first slot, and the number of tokens of a sequence."""
    start = start_of(cu_seqlens_ptr, n, total)
    return start, slot_of(cu_seqlens_ptr, n, total, C), (start_of(cu_seqlens_ptr, n + 1, total) - start).to(tl.int32)


@triton.jit(do_not_specialize=["total"])
def forward_kernel(
    k_ptr, cu_seqlens_ptr, total, w_ptr, r_ptr, decay_ptr, initial_ptr, starts_ptr, rest_ptr,
    HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr, HAS_REST: tl.constexpr,
    K_FIRST: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """The state at the start of each chunk, and the error of each token: r = (its part in r already) - w S^T. HAS_REST:
    also what r loses as an operand, of the chunks at both ends."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start, slot, length = chunks_of(cu_seqlens_ptr, n, total, C)

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    there = (j < D)[:, None] & (i < D)[None, :]
    if HAS_INITIAL:
        S = tl.load(initial_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)  # [BK, BV]
    else:
        S = tl.zeros([BK, BV], dtype=tl.float32)

    for chunk in tl.range(0, tl.cdiv(length, C), num_stages=STAGES):
        token = start + chunk * C + t
        row = t < length - chunk * C
        at = (slot + chunk) * H + h
        w = tl.load(w_ptr + at * (C * max(C, D)) + t[:, None] * D + j[None, :], mask=(j < D)[None, :], other=0.0)
        r_at, r_in = (token * H + h)[:, None] * D + i[None, :], row[:, None] & (i < D)[None, :]
        r = tl.load(r_ptr + r_at, mask=r_in, other=0.0)
        k_at, k_in = (token * HK + h // (H // HK))[:, None] * D + j[None, :], row[:, None] & (j < D)[None, :]
        K = tl.load(k_ptr + k_at, mask=k_in, other=0.0).to(OPERAND)
        gamma_C = tl.load(decay_ptr + at * (4 * C) + C - 1)
        written = tl.load(decay_ptr + at * (4 * C) + 2 * C + t) * tl.load(decay_ptr + at * (4 * C) + 3 * C + t)

        held = S.to(OPERAND)
        tl.store(starts_ptr + at * (D * D) + j[:, None] * D + i[None, :], held, mask=there)
        r = tl.dot(w, held, acc=r.to(tl.float32), input_precision=PRECISION)  # w has come with its sign turned
        tl.store(r_ptr + r_at, r.to(OPERAND), mask=r_in)
        if HAS_REST and (chunk == 0) | (chunk == tl.cdiv(length, C) - 1):
            kept_at = rest_at(n, h, chunk == tl.cdiv(length, C) - 1, t, i, H, D, C)
            tl.store(rest_ptr + kept_at, rest_of(r, OPERAND), mask=(i < D)[None, :])
        # S <- gamma_C S + U^T diag(Gamma_C,:) K, U = diag(beta) r
        U = (r * written[:, None]).to(OPERAND)
        S = tl.dot(tl.trans(K), U, acc=S * gamma_C, input_precision=PRECISION)


@triton.jit(do_not_specialize=["total"])
def backward_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, total, r_ptr, z_ptr, x_ptr, decay_ptr, starts_ptr, dht_ptr,
    ends_ptr, dh0_ptr, sums_ptr, rest_ptr, scale, norm_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_DHT: tl.constexpr,
    HAS_REST: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient dS of the state at the end of each chunk, that of what each token writes, x = (its part in x
    already) + z dS^T, and dh0. On the way, while dS and x are at hand in float32, x . r of each token, which is dbeta,
    and <S, dS>, over the value channels of a program."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start, slot, length = chunks_of(cu_seqlens_ptr, n, total, C)

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    there = (j < D)[:, None] & (i < D)[None, :]
    if HAS_DHT:
        dS = tl.load(dht_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)  # [BK, BV]
    else:
        dS = tl.zeros([BK, BV], dtype=tl.float32)

    # An empty sequence makes no turn: dh0 is dht.
    chunks = tl.cdiv(length, C)
    for turn in tl.range(0, chunks, num_stages=STAGES):
        chunk = chunks - 1 - turn
        token = start + chunk * C + t
        row = t < length - chunk * C
        at = (slot + chunk) * H + h
        z = tl.load(z_ptr + at * (C * D) + t[:, None] * D + j[None, :], mask=(j < D)[None, :], other=0.0)
        x_at, x_in = (token * H + h)[:, None] * D + i[None, :], row[:, None] & (i < D)[None, :]
        x = tl.load(x_ptr + x_at, mask=x_in, other=0.0)
        G = tl.load(do_ptr + x_at, mask=x_in, other=0.0)
        r = tl.load(r_ptr + x_at, mask=x_in, other=0.0)
        element = at * (D * D) + j[:, None] * D + i[None, :]
        S = tl.load(starts_ptr + element, mask=there, other=0.0)
        channels = row[:, None] & (j < D)[None, :]
        Q = tl.load(q_ptr + (token * HQ + h // (H // HQ))[:, None] * D + j[None, :], mask=channels, other=0.0)
        K = tl.load(k_ptr + (token * HK + h // (H // HK))[:, None] * D + j[None, :], mask=channels, other=0.0)
        gamma = tl.load(decay_ptr + at * (4 * C) + t)
        gamma_C = tl.load(decay_ptr + at * (4 * C) + C - 1)
        erased = tl.load(decay_ptr + at * (4 * C) + C + t)

        held = dS.to(OPERAND)
        tl.store(ends_ptr + element, held, mask=there)
        through = tl.sum(tl.sum(S.to(tl.float32) * dS, axis=1), axis=0)
        sums = sums_ptr + (at * SLICES + block) * (C + 1)
        tl.store(sums + C, through)
        x = tl.dot(z, held, acc=x.to(tl.float32), input_precision=PRECISION)
        tl.store(x_ptr + x_at, x.to(OPERAND), mask=x_in)
        if HAS_REST and (chunk == 0) | (turn == 0):
            tl.store(rest_ptr + rest_at(n, h, turn == 0, t, i, H, D, C), rest_of(x, OPERAND), mask=(i < D)[None, :])
        tl.store(sums + t, tl.sum(x * r.to(tl.float32), axis=1))
        # dS <- gamma_C dS + (diag(gamma) G)^T Q - (diag(gamma) dV)^T K, dV = diag(beta) x
        G = G.to(tl.float32) * gamma[:, None]
        G = scaled(G, scale, norm_ptr, token * HQ + h // (H // HQ), row, NORMED).to(OPERAND)
        dS = tl.dot(tl.trans(Q.to(OPERAND)), G, acc=dS * gamma_C, input_precision=PRECISION)
        dV = (x * -erased[:, None]).to(OPERAND)
        dS = tl.dot(tl.trans(K.to(OPERAND)), dV, acc=dS, input_precision=PRECISION)
    tl.store(dh0_ptr + state_at(n, h, i, j, H, D, K_FIRST), dS, mask=there)
