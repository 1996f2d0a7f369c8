"""The two walks over the chunks of a sequence, with the state, or its gradient, of some value channels in registers.

Both are kept as [key channels, value channels]: so each product has on its left what was loaded. PASS: "whole" is over
a sequence. Where (sequence, head) pairs are few, "moves" finds what each segment of SEGMENT chunks makes of a state.
Once the states at all their ends are known (scan.py), "parts" is over all segments at once. "given" is the same where a
caller has these states.
"""

import triton
import triton.language as tl
from chunks import chunks_of, slot_of, span_of
from decays import lost_of
from products import rest_of
from rows import scaled, state_at, there_are, triangle


@triton.jit(do_not_specialize=["total", "num_seqs", "num_checkpoints", "part", "many"])
def forward_kernel(
    k_ptr, v_ptr, cu_seqlens_ptr, total, num_seqs, inverse_ptr, r_ptr, dv_ptr, decay_ptr, initial_ptr, starts_ptr,
    bounds_ptr, moves_ptr, diagonals_ptr, sums_ptr, checkpoints_ptr, first_ptr, num_checkpoints, part, many, lost_ptr,
    HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr,
    K_FIRST: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr, PASS: tl.constexpr, SEGMENT: tl.constexpr,
    PARTS: tl.constexpr, SUMS: tl.constexpr, LOST: tl.constexpr,
):  # fmt: skip
    """The state at the start of each chunk, and the error r of each token. SUMS: dv is known, and so x . r is summed
    here (backward_kernel)."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    # Half of the programs of "moves" walk from nothing, and half from the identity, without values.
    PROGRAMS: tl.constexpr = 2 * SLICES if PASS == "moves" else SLICES
    block, pair = tl.program_id(0) % PROGRAMS, tl.program_id(0) // PROGRAMS
    h, place = pair % H, (pair // H).to(tl.int64)
    n, start, slot, length = chunks_of(cu_seqlens_ptr, place, num_seqs, total, C, SEGMENT)
    if SEGMENT > 0 and length <= 0:  # a slot that no segment has
        return
    chunks = tl.cdiv(length, C)
    from_chunk = chunks * 0
    if PARTS > 1:  # `many` parts from the end of part `part` + `many` - 1, which comes first
        last, turns, _, _ = span_of(cu_seqlens_ptr, n, place, length, part, many, total, C, SEGMENT, PARTS)
        from_chunk, chunks = last + 1 - turns, last + 1
        if PASS == "parts" and turns <= 0:
            return
    identity = block >= SLICES
    kept = 1.0
    if LOST and PASS == "moves":  # what comes to nothing before the segment ends is not walked
        begin, _, nothing = lost_of(lost_ptr, slot, h, chunks, H, C, SEGMENT)
        kept = tl.where(nothing, 0.0, 1.0)
        from_chunk = tl.where(identity, tl.where(nothing, chunks, 0), begin)
    RESTS: tl.constexpr = (HAS_INITIAL or PASS == "given") and PASS != "moves" and TERMS == 2

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block % SLICES * BV + tl.arange(0, BV)
    there = there_are(j, D)[:, None] & there_are(i, D)[None, :]
    places, below = triangle(t, C)
    bound = (place * H + h) * (D * D) + j[:, None] * D + i[None, :]
    if PASS == "moves":
        S = tl.where((j[:, None] == i[None, :]) & identity, kept, 0.0)
    elif PASS == "parts":
        S = tl.load(bounds_ptr + bound, mask=there, other=0.0)
    elif PASS == "given":
        piece = place - slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)
        nth = tl.minimum(tl.maximum(tl.load(first_ptr + n).to(tl.int64) + piece - 1, 0), num_checkpoints - 1)
        S = tl.load(checkpoints_ptr + state_at(nth, h, i, j, H, D, False), mask=there & (piece > 0), other=0.0)
        if HAS_INITIAL:
            S += tl.load(initial_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there & (piece == 0), other=0.0)
    elif HAS_INITIAL:
        S = tl.load(initial_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)  # [BK, BV]
    else:
        S = tl.zeros([BK, BV], dtype=tl.float32)

    # What does not change from chunk to chunk is computed in each: held over the loop, it spills registers.
    for chunk in tl.range(from_chunk, chunks, num_stages=STAGES, disable_licm=True):
        token = start + chunk * C + t
        row = t < length - chunk * C
        at = (slot + chunk) * H + h
        k_at, k_in = (token * HK + h // (H // HK))[:, None] * D + j[None, :], row[:, None] & there_are(j, D)[None, :]
        K = tl.load(k_ptr + k_at, mask=k_in, other=0.0).to(OPERAND)
        v_at, inside = (token * HV + h // (H // HV))[:, None] * D + i[None, :], row[:, None] & there_are(i, D)[None, :]
        if PASS == "moves":
            inside &= tl.broadcast_to(block < SLICES, [C, BV])
        V = tl.load(v_ptr + v_at, mask=inside, other=0.0)
        E = tl.load(inverse_ptr + at * (C * (C + 8) // 2) + places, mask=below, other=0.0)
        decay = decay_ptr + at * (8 * C)
        gamma, written, gamma_C = tl.load(decay + t), tl.load(decay + 7 * C + t), tl.load(decay + C - 1)

        held = S.to(OPERAND)
        # r = E (V - diag(gamma) K S^T). Behind a reset that is V, which has no factor here: so no operand rounds it.
        KS = tl.dot(K, held, input_precision=PRECISION)
        if RESTS and chunk == 0:  # a given state may be large beside all that it meets
            KS = tl.dot(K, rest_of(S, OPERAND), acc=KS)
        if PASS != "moves":  # behind the product: it takes registers that the store still reads
            tl.store(starts_ptr + at * (D * D) + j[:, None] * D + i[None, :], held, mask=there)
        X = V.to(tl.float32) - KS * gamma[:, None]
        r = tl.dot(E, X.to(OPERAND), input_precision=PRECISION)
        if PASS != "moves":
            tl.store(r_ptr + (token * H + h)[:, None] * D + i[None, :], r.to(OPERAND), mask=inside)
        if SUMS:
            x_at = (token * H + h)[:, None] * D + i[None, :]
            dV = tl.load(dv_ptr + x_at, mask=inside, other=0.0).to(tl.float32)
            tl.store(sums_ptr + (at * SLICES + block) * C + t, tl.sum(r * dV, axis=1))
        # S <- gamma_C S + U^T diag(Gamma_C,:) K, U = diag(beta) r
        U = (r * written[:, None]).to(OPERAND)
        S = tl.dot(tl.trans(K), U, acc=S * gamma_C, input_precision=PRECISION)
    if PASS == "moves":
        if identity:  # the diagonal stays in float32 (scan.py)
            on = j[:, None] == i[None, :]
            tl.store(moves_ptr + bound, tl.where(on, 0.0, S).to(OPERAND), mask=there)
            diagonal = tl.sum(tl.where(on, S, 0.0), axis=0)
            tl.store(diagonals_ptr + (place * H + h) * D + i, diagonal, mask=i < D)
        else:
            tl.store(bounds_ptr + bound, S, mask=there)
    elif PARTS > 1:  # the next launch goes on from there
        tl.debug_barrier()  # all of S was read from there
        tl.store(bounds_ptr + bound, S, mask=there)


@triton.jit(do_not_specialize=["total", "num_seqs", "part", "many", "apart"])
def backward_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, total, num_seqs, r_ptr, inverse_ptr, P_ptr, dv_ptr, decay_ptr, dht_ptr,
    ends_ptr, dh0_ptr, bounds_ptr, sums_ptr, scale, part, many, apart, norm_ptr, lost_ptr,
    NORMED: tl.constexpr, HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_DHT: tl.constexpr,
    K_FIRST: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr, PASS: tl.constexpr, SEGMENT: tl.constexpr,
    PARTS: tl.constexpr, ALL: tl.constexpr, SUMS: tl.constexpr, LOST: tl.constexpr, WALKS: tl.constexpr,
    LATE: tl.constexpr,
):  # fmt: skip
    """The gradient dS of the state at the end of each chunk of some parts, dV, and dh0. On the way, while
    x is at hand in float32, x . r of each token, which is dbeta, over the value channels of a program. Where r is not
    known yet, without SUMS, forward_kernel sums that, which has r in float32: from dV / b.

    A launch goes on from where the one before has ended: in dh0, which is then also given as dht, or in `bounds`. ALL:
    the gradients dS of all chunks are kept. Else those of the parts here, with `apart` places for each part. LATE: they
    are stored behind the first product, which is faster beside the other walk, and slower without it."""
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, place = pair % H, (pair // H).to(tl.int64)
    n, start, slot, length = chunks_of(cu_seqlens_ptr, place, num_seqs, total, C, SEGMENT)
    if SEGMENT > 0 and length <= 0:  # a slot that no segment has
        return
    last, turns, span, kept = span_of(cu_seqlens_ptr, n, place, length, part, many, total, C, SEGMENT, PARTS)
    if PARTS > 1 and (part > 0) & (turns <= 0):
        return
    if LOST and PASS == "moves":  # as in forward_kernel
        _, last, _ = lost_of(lost_ptr, slot, h, turns, H, C, SEGMENT)
        turns = last + 1
        if (WALKS == "short" and turns > SEGMENT // 2) or (WALKS == "long" and turns <= SEGMENT // 2):
            return

    t = tl.arange(0, C)
    j, i = tl.arange(0, BK), block * BV + tl.arange(0, BV)
    there = there_are(j, D)[:, None] & there_are(i, D)[None, :]
    places, below = triangle(t, C)
    bound = (place * H + h) * (D * D) + j[:, None] * D + i[None, :]
    if PASS == "moves":
        dS = tl.zeros([BK, BV], dtype=tl.float32)
    elif PASS == "parts":
        dS = tl.load(bounds_ptr + bound, mask=there, other=0.0)
    elif HAS_DHT:
        dS = tl.load(dht_ptr + state_at(n, h, i, j, H, D, K_FIRST), mask=there, other=0.0)  # [BK, BV]
    else:
        dS = tl.zeros([BK, BV], dtype=tl.float32)

    RESTS: tl.constexpr = HAS_DHT and PASS != "moves" and TERMS == 2
    # An empty sequence makes no turn: dh0 is dht.
    for turn in tl.range(0, turns, num_stages=STAGES, disable_licm=True):
        chunk = last - turn
        token = start + chunk * C + t
        row = t < length - chunk * C
        at = (slot + chunk) * H + h
        channels, inside = row[:, None] & there_are(j, D)[None, :], row[:, None] & there_are(i, D)[None, :]
        K = tl.load(k_ptr + (token * HK + h // (H // HK))[:, None] * D + j[None, :], mask=channels, other=0.0)
        P = tl.load(P_ptr + at * (C * (C + 8) // 2) + places, mask=below, other=0.0)
        x_at = (token * H + h)[:, None] * D + i[None, :]
        G = tl.load(do_ptr + x_at, mask=inside, other=0.0).to(OPERAND)
        E = tl.load(inverse_ptr + at * (C * (C + 8) // 2) + places, mask=below, other=0.0)
        Q = tl.load(q_ptr + (token * HQ + h // (H // HQ))[:, None] * D + j[None, :], mask=channels, other=0.0)
        K, Q = K.to(OPERAND), Q.to(OPERAND)
        decay = decay_ptr + at * (8 * C)
        gamma, written, gamma_C = tl.load(decay + t), tl.load(decay + C + t), tl.load(decay + C - 1)

        held = dS.to(OPERAND)
        end = slot + chunk if ALL else turn // span * apart + kept + turn % span
        end_at = ends_ptr + (end * H + h) * (D * D) + j[:, None] * D + i[None, :]
        if PASS != "moves" and not LATE:
            tl.store(end_at, held, mask=there)
        KD = tl.dot(K, held, input_precision=PRECISION)
        if RESTS and turn + part == 0:  # as in forward_kernel
            KD = tl.dot(K, rest_of(dS, OPERAND), acc=KD)
        if PASS != "moves" and LATE:
            tl.store(end_at, held, mask=there)
        # dS <- gamma_C dS + (diag(gamma) G)^T Q - (diag(gamma) dV)^T K, the first sum before x takes registers
        GD = scaled(G.to(tl.float32) * gamma[:, None], scale, norm_ptr, token * HQ + h // (H // HQ), row, NORMED)
        dS = tl.dot(tl.trans(Q), GD.to(OPERAND), acc=dS * gamma_C, input_precision=PRECISION)
        # dV = E^T diag(b) (P^T G + diag(Gamma_C,:) K dS^T), and P has the factor b
        X = tl.dot(tl.trans(P), G, acc=KD * written[:, None], input_precision=PRECISION)
        dV = tl.dot(tl.trans(E), X.to(OPERAND), input_precision=PRECISION)
        if PASS != "moves":
            tl.store(dv_ptr + x_at, dV.to(OPERAND), mask=inside)
        if SUMS and PASS != "moves":
            r = tl.load(r_ptr + x_at, mask=inside, other=0.0)
            tl.store(sums_ptr + (at * SLICES + block) * C + t, tl.sum(dV * r.to(tl.float32), axis=1))
        dS = tl.dot(tl.trans(K), (dV * -gamma[:, None]).to(OPERAND), acc=dS, input_precision=PRECISION)
    if PARTS > 1:
        tl.debug_barrier()  # all of dS was read from there
    if PASS == "moves" or (PASS == "parts" and PARTS > 1):
        tl.store(bounds_ptr + bound, dS, mask=there)
    elif PASS == "whole":
        tl.store(dh0_ptr + state_at(n, h, i, j, H, D, K_FIRST), dS, mask=there)
