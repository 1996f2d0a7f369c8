"""The two walks of the backward pass over the chunks of a sequence, with the state, or its gradient, of some value
channels in registers.

Both are kept as [key channels, value channels]: so each product has on its left what was loaded. PASS: "whole" is over
a sequence. Where (sequence, head) pairs are few, "moves" finds what each segment of SEGMENT chunks makes of a state.
Once the states at all their ends are known (back_scan.py), "parts" is over all segments at once.
"""

import triton
import triton.language as tl
from back_prepare import used_rows, write_gates
from chunks import sequence_of, slot_of, start_of
from low import low_bits, low_of


@triton.jit
def chunks_of(cu_seqlens_ptr, at, num_seqs, total, C: tl.constexpr, SEGMENT: tl.constexpr):
    """The sequence at which number, or the one that has a segment; its first token and slot, and how many tokens."""
    if SEGMENT == 0:
        n, before, most = at, at * 0, total
    else:
        n = sequence_of(cu_seqlens_ptr, at, num_seqs, total, C * SEGMENT)
        before = (at - slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)).to(tl.int32).to(tl.int64) * SEGMENT
        most = SEGMENT * C
    start = start_of(cu_seqlens_ptr, n, total) + before * C
    length = tl.minimum(start_of(cu_seqlens_ptr, n + 1, total) - start, most).to(tl.int32)
    return n, start, slot_of(cu_seqlens_ptr, n, total, C) + before, length


@triton.jit
def given_state(x_ptr, n, h, i, j, H: tl.constexpr, D: tl.constexpr):
    """A caller's state of some value channels, [V, K] in memory and [BK, BV] here."""
    x_ptr += (n * H + h).to(tl.int64) * (D * D)  # states outgrow 32 bits
    return tl.load(x_ptr + i[None, :] * D + j[:, None], mask=(j < D)[:, None] & (i < D)[None, :], other=0.0)


@triton.jit
def store_state(x_ptr, S, n, h, i, j, H: tl.constexpr, D: tl.constexpr):
    """The other way."""
    x_ptr += (n * H + h).to(tl.int64) * (D * D)
    tl.store(x_ptr + i[None, :] * D + j[:, None], S, mask=(j < D)[:, None] & (i < D)[None, :])


@triton.jit
def rest_of(X):
    """What a float32 X loses as an operand, as an operand."""
    return (X - X.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["total", "num_seqs"])
def states_kernel(
    v_ptr, beta_ptr, cu_seqlens_ptr, total, num_seqs, from_k_ptr, to_end_ptr, fall_ptr, inverse_ptr, r_ptr, r_low_ptr,
    initial_ptr, starts_ptr, start_low_ptr, bounds_ptr, moves_ptr, diagonals_ptr,
    H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr, HAS_INITIAL: tl.constexpr, SHORT: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr, PASS: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """The state at the start of each chunk, and the error r of each token."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    # Half of the programs of "moves" walk from nothing, and half from the identity, without values.
    PROGRAMS: tl.constexpr = 2 * SLICES if PASS == "moves" else SLICES
    block, pair = tl.program_id(0) % PROGRAMS, tl.program_id(0) // PROGRAMS
    h, place = pair % H, (pair // H).to(tl.int64)
    n, start, slot, length = chunks_of(cu_seqlens_ptr, place, num_seqs, total, C, SEGMENT)
    if SEGMENT > 0 and length <= 0:  # a slot that no segment has
        return
    identity = block >= SLICES

    RESTS: tl.constexpr = HAS_INITIAL and PASS != "moves"

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block % SLICES * BV + tl.arange(0, BV)
    there, square = (j < D)[:, None] & (i < D)[None, :], t[:, None] * C + t[None, :]
    of_keys, of_state = t[:, None] * D + j[None, :], j[:, None] * D + i[None, :]  # offsets within a chunk: 32 bits
    if SEGMENT > 0:
        bounds_ptr += (place * H + h) * (D * D)
    if PASS == "moves":
        S = tl.where((j[:, None] == i[None, :]) & identity, 1.0, 0.0)
    elif PASS == "parts":
        S = tl.load(bounds_ptr + of_state, mask=there, other=0.0)
    elif HAS_INITIAL:
        S = given_state(initial_ptr, n, h, i, j, H, D)  # [BK, BV]
    else:
        S = tl.zeros([BK, BV], dtype=tl.float32)

    of_values = t[:, None] * (H * D) + i[None, :]
    for chunk in tl.range(0, tl.cdiv(length, C), num_stages=STAGES):
        token, at = (start + chunk * C) * H + h, (slot + chunk) * H + h
        row = t < length - chunk * C
        known = used_rows(row, SHORT)
        keys_in, rows_in = known[:, None] & (j < D)[None, :], known[:, None] & (t >= 0)[None, :]
        K = tl.load(from_k_ptr + at * (C * D) + of_keys, mask=keys_in, other=0.0)
        inside = row[:, None] & (i < D)[None, :]
        if PASS == "moves":
            inside &= tl.broadcast_to(block < SLICES, [C, BV])
        V = tl.load(v_ptr + token * D + of_values, mask=inside, other=0.0)
        M = tl.load(inverse_ptr + at * (C * C) + square, mask=rows_in, other=0.0)
        to_end = tl.load(to_end_ptr + at * (C * D) + of_keys, mask=keys_in, other=0.0)
        fall = tl.load(fall_ptr + at * D + j, mask=j < D, other=0.0)
        beta, b = write_gates(beta_ptr, token + t * H, row, HAS_BETA)

        held = S.to(tl.bfloat16)
        if PASS != "moves":
            tl.store(starts_ptr + at * (D * D) + of_state, held, mask=there)
            tl.store(start_low_ptr + at * (D * D) + of_state, low_bits(S, held), mask=there)
        # r = E (V - (gamma * K) S^T) for E = diag(b)^-1 M diag(b)
        KS = tl.dot(K, held)
        if RESTS and chunk == 0:  # a given state may be large beside all that it meets
            KS = tl.dot(K, rest_of(S), acc=KS)
        X = (V.to(tl.float32) - KS) * b[:, None]
        r = tl.dot(M, X.to(tl.bfloat16)) * (1.0 / b)[:, None]
        if PASS != "moves":
            rounded = r.to(tl.bfloat16)
            tl.store(r_ptr + token * D + of_values, rounded, mask=inside)
            tl.store(r_low_ptr + token * D + of_values, low_bits(r, rounded), mask=inside)
        # S <- S Diag(gamma_C) + U^T (Gamma_C,: * K), U = diag(beta) r
        S = tl.dot(tl.trans(to_end), (r * beta[:, None]).to(tl.bfloat16), acc=S * fall[:, None])
    if PASS == "moves":
        if identity:  # the diagonal stays in float32 (back_scan.py)
            on = j[:, None] == i[None, :]
            moves_ptr += (place * H + h) * (D * D)
            tl.store(moves_ptr + of_state, tl.where(on, 0.0, S).to(tl.bfloat16), mask=there)
            diagonal = tl.sum(tl.where(on, S, 0.0), axis=0)
            tl.store(diagonals_ptr + (place * H + h) * D + i, diagonal, mask=i < D)
        else:
            tl.store(bounds_ptr + of_state, S, mask=there)


@triton.jit(do_not_specialize=["total", "num_seqs"])
def walk_back_kernel(
    do_ptr, beta_ptr, cu_seqlens_ptr, total, num_seqs, from_q_ptr, from_k_ptr, to_end_ptr, fall_ptr, r_ptr, r_low_ptr,
    inverse_ptr, P_ptr, dv_ptr, dv_out_ptr, dht_ptr, ends_ptr, end_low_ptr, dh0_ptr, bounds_ptr, of_walk_ptr,
    H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr, HAS_DHT: tl.constexpr, APART: tl.constexpr,
    SHORT: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr, PASS: tl.constexpr,
    SEGMENT: tl.constexpr,
):  # fmt: skip
    """The gradient dS of the state at the end of each chunk, dV, and dh0. On the way, while x is at hand in float32,
    x . r of each token, which is dbeta, over the value channels of a program. APART: dv is not in bfloat16, and is
    written beside what other kernels read."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, place = pair % H, (pair // H).to(tl.int64)
    n, start, slot, length = chunks_of(cu_seqlens_ptr, place, num_seqs, total, C, SEGMENT)
    if SEGMENT > 0 and length <= 0:  # a slot that no segment has
        return

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    there, square = (j < D)[:, None] & (i < D)[None, :], t[:, None] * C + t[None, :]
    of_keys, of_state = t[:, None] * D + j[None, :], j[:, None] * D + i[None, :]  # offsets within a chunk: 32 bits
    if SEGMENT > 0:
        bounds_ptr += (place * H + h) * (D * D)
    if PASS == "moves":
        dS = tl.zeros([BK, BV], dtype=tl.float32)
    elif PASS == "parts":
        dS = tl.load(bounds_ptr + of_state, mask=there, other=0.0)
    elif HAS_DHT:
        dS = given_state(dht_ptr, n, h, i, j, H, D)  # [BK, BV]
    else:
        dS = tl.zeros([BK, BV], dtype=tl.float32)

    RESTS: tl.constexpr = HAS_DHT and PASS != "moves"
    # An empty sequence makes no turn: dh0 is dht.
    chunks = tl.cdiv(length, C)
    of_values = t[:, None] * (H * D) + i[None, :]
    for turn in tl.range(0, chunks, num_stages=STAGES):
        chunk = chunks - 1 - turn
        token, at = (start + chunk * C) * H + h, (slot + chunk) * H + h
        row = t < length - chunk * C
        known = used_rows(row, SHORT)
        inside = row[:, None] & (i < D)[None, :]
        keys_in, rows_in = known[:, None] & (j < D)[None, :], known[:, None] & (t >= 0)[None, :]
        to_end = tl.load(to_end_ptr + at * (C * D) + of_keys, mask=keys_in, other=0.0)
        G = tl.load(do_ptr + token * D + of_values, mask=inside, other=0.0).to(tl.bfloat16)
        P = tl.load(P_ptr + at * (C * C) + square, mask=rows_in, other=0.0)
        M = tl.load(inverse_ptr + at * (C * C) + square, mask=rows_in, other=0.0)
        Q = tl.load(from_q_ptr + at * (C * D) + of_keys, mask=keys_in, other=0.0)
        K = tl.load(from_k_ptr + at * (C * D) + of_keys, mask=keys_in, other=0.0)
        fall = tl.load(fall_ptr + at * D + j, mask=j < D, other=0.0)
        beta, _ = write_gates(beta_ptr, token + t * H, row, HAS_BETA)

        held = dS.to(tl.bfloat16)
        if PASS != "moves":
            tl.store(ends_ptr + at * (D * D) + of_state, held, mask=there)
            tl.store(end_low_ptr + at * (D * D) + of_state, low_bits(dS, held), mask=there)
        # x = M^T (P^T G + (Gamma_C,: * K) dS^T)
        X = tl.dot(to_end, held)
        if RESTS and turn == 0:  # as in states_kernel
            X = tl.dot(to_end, rest_of(dS), acc=X)
        # dS <- dS Diag(gamma_C) + G^T (gamma * Q) - dV^T (gamma * K), the first sum before x takes registers
        dS = tl.dot(tl.trans(Q), G, acc=dS * fall[:, None])
        X = tl.dot(tl.trans(P), G, acc=X)
        x = tl.dot(tl.trans(M), X.to(tl.bfloat16))
        dV = x * beta[:, None]
        if PASS != "moves":
            tl.store(dv_ptr + token * D + of_values, dV.to(tl.bfloat16), mask=inside)
            if APART:
                tl.store(dv_out_ptr + token * D + of_values, dV.to(dv_out_ptr.dtype.element_ty), mask=inside)
            r = tl.load(r_ptr + token * D + of_values, mask=inside, other=0.0)
            low = low_of(r, tl.load(r_low_ptr + token * D + of_values, mask=inside, other=0))
            dbeta = tl.sum(x * (r.to(tl.float32) + low.to(tl.float32)), axis=1)
            tl.store(of_walk_ptr + (at * SLICES + block) * C + t, dbeta)
        dS = tl.dot(tl.trans(K), (-dV).to(tl.bfloat16), acc=dS)
    if PASS == "moves":
        tl.store(bounds_ptr + of_state, dS, mask=there)
    elif PASS == "whole":
        store_state(dh0_ptr, dS, n, h, i, j, H, D)
