"""The walk over chunks, with a slice of the state's rows in registers.

"whole": over a sequence, with the output. Or, where (sequence, head) pairs are few and time is the length of a walk,
over all segments of SEGMENT chunks at once: "segments" makes what each of them does to a state (scan.py), and, once the
states at their starts are known, "outputs" the output.
"""

import triton
import triton.language as tl
from chunks import sequence_of, slot_of, start_of


@triton.jit(do_not_specialize=["total", "num_seqs", "num_checkpoints", "every"])
def chain_kernel(
    q_ptr, k_ptr, cu_seqlens_ptr, total, num_seqs, u_ptr, w_ptr, P_ptr, decay_ptr, initial_ptr, states_ptr, moves_ptr,
    diagonals_ptr, output_ptr, final_ptr, scale, starts_ptr, checkpoints_ptr, num_checkpoints, every,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr,
    HAS_INITIAL: tl.constexpr, HAS_CHECKPOINTS: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
    PASS: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    OUTPUT: tl.constexpr = PASS != "segments"
    # Of "segments" as many slices of keys as of values, so that there are twice as many programs.
    ROWS: tl.constexpr = K_SIZE if K_SIZE > V_SIZE and not OUTPUT else V_SIZE
    SLICES: tl.constexpr = (ROWS + BV - 1) // BV
    PROGRAMS: tl.constexpr = SLICES if OUTPUT else 2 * SLICES
    block, pair = tl.program_id(0) % PROGRAMS, tl.program_id(0) // PROGRAMS
    h = pair % H
    if PASS == "whole":
        n = pair // H
        before = 0
    else:
        segment = (pair // H).to(tl.int64)  # its slot
        n = sequence_of(cu_seqlens_ptr, segment, num_seqs, total, C * SEGMENT)
        before = (segment - slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)) * SEGMENT  # chunks of the sequence
    start = start_of(cu_seqlens_ptr, n, total) + before * C
    stop = start_of(cu_seqlens_ptr, n + 1, total)
    slot = slot_of(cu_seqlens_ptr, n, total, C) + before
    chunks = tl.cdiv(stop - start, C).to(tl.int32)
    if PASS != "whole":
        chunks = tl.minimum(chunks, SEGMENT)
        if chunks <= 0:  # a slot that no segment has
            return

    t = tl.arange(0, C)
    j = tl.arange(0, BK)  # key channels
    v = block * BV + tl.arange(0, BV)  # value channels, of which the programs that walk from the identity have none
    i = v % (SLICES * BV) if PASS == "segments" else v  # rows of the state
    rows = V_SIZE
    if PASS == "segments" and K_SIZE != V_SIZE:
        rows = tl.where(block >= SLICES, K_SIZE, V_SIZE)
        if block % SLICES * BV >= rows:  # a slice that the smaller of the two has not
            return
    j_in, i_in = j < K_SIZE, i < rows
    state_in = i_in[:, None] & j_in[None, :]
    state_at = j[None, :] * V_SIZE + i[:, None] if K_FIRST else i[:, None] * K_SIZE + j[None, :]
    state = (n * H + h).to(tl.int64) * (V_SIZE * K_SIZE)  # states outgrow 32 bits
    if PASS == "whole":
        if HAS_INITIAL:
            S = tl.load(initial_ptr + state + state_at, mask=state_in, other=0.0)  # [BV, BK]
        else:
            S = tl.zeros([BV, BK], dtype=tl.float32)
    else:
        states_ptr += (segment * H + h) * (V_SIZE * K_SIZE)
        kept_at = i[:, None] * K_SIZE + j[None, :]
        if PASS == "outputs":
            S = tl.load(states_ptr + kept_at, mask=state_in, other=0.0)
        else:  # half of the programs walk from nothing, and half from the identity, without u
            identity = block >= SLICES
            S = tl.where((i[:, None] == j[None, :]) & identity, 1.0, 0.0)

    # An empty sequence makes no turn: its final state is its initial one. Everything is transposed, [BV, ..]: the state
    # stays in registers as the left operand of both products that wait for it.
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        token = start + chunk * C + t
        row = t < tl.minimum(stop - start - chunk * C, C).to(tl.int32)
        inside = row[:, None] & j_in[None, :]
        at = (slot + chunk) * H + h
        w_at = w_ptr + at * (C * K_SIZE) + t[:, None] * K_SIZE + j[None, :]
        w = tl.load(w_at, mask=j_in[None, :], other=0.0)  # [C, BK]
        u_at, u_in = (token * H + h)[None, :] * V_SIZE + v[:, None], row[None, :] & (v < V_SIZE)[:, None]
        u = tl.load(u_ptr + u_at, mask=u_in, other=0.0)  # [BV, C]
        k_at = k_ptr + (token * HK + h // (H // HK))[:, None] * K_SIZE + j[None, :]
        K = tl.load(k_at, mask=inside, other=0.0).to(OPERAND)
        to_end = tl.load(decay_ptr + at * (2 * C) + C + t)
        gamma_C = tl.load(decay_ptr + at * (2 * C) + C - 1)

        # U^T = u^T - S w^T, a sum that starts from u: w has come with its sign turned.
        held = S.to(OPERAND)
        U = tl.dot(held, tl.trans(w), acc=u.to(tl.float32), input_precision=PRECISION)
        if OUTPUT:  # O^T = scale (S Q^T diag(gamma) + U^T P^T), begun while the chunk's first S is at hand
            q_at = (token * HQ + h // (H // HQ))[:, None] * K_SIZE + j[None, :]
            Q = tl.load(q_ptr + q_at, mask=inside, other=0.0).to(OPERAND)
            gamma = tl.load(decay_ptr + at * (2 * C) + t)
            O = tl.dot(held, tl.trans(Q), input_precision=PRECISION) * gamma[None, :]
        # S <- gamma_C S + U^T diag(Gamma_C,:) K
        S = tl.dot((U * to_end[None, :]).to(OPERAND), K, acc=S * gamma_C, input_precision=PRECISION)
        if OUTPUT:
            P = tl.load(P_ptr + at * (C * C) + t[:, None] * C + t[None, :])  # [C, C]
            O = tl.dot(U.to(OPERAND), tl.trans(P), acc=O, input_precision=PRECISION) * scale
            o_at, o_in = (token * H + h)[:, None] * V_SIZE + i[None, :], row[:, None] & i_in[None, :]
            tl.store(output_ptr + o_at, tl.trans(O.to(output_ptr.dtype.element_ty)), mask=o_in)

        if HAS_CHECKPOINTS and OUTPUT:  # [V, K], after every so many whole chunks
            due = ((before + chunk + 1) % every == 0) & (chunk < (stop - start) // C)
            if due:
                checkpoint = tl.load(starts_ptr + n).to(tl.int64) + (before + chunk + 1) // every - 1
                there = (checkpoint >= 0) & (checkpoint < num_checkpoints)  # whatever starts_ptr holds
                checkpoint_at = (checkpoint * H + h) * (V_SIZE * K_SIZE) + i[:, None] * K_SIZE + j[None, :]
                tl.store(checkpoints_ptr + checkpoint_at, S, mask=state_in & there)

    if PASS == "whole":
        tl.store(final_ptr + state + state_at, S, mask=state_in)
    elif PASS == "segments":
        if identity:
            on = i[:, None] == j[None, :]  # the diagonal stays in float32 (scan.py)
            E = tl.where(on, 0.0, S).to(OPERAND)
            tl.store(moves_ptr + (segment * H + h) * (K_SIZE * K_SIZE) + kept_at, E, mask=state_in)
            diagonal = tl.sum(tl.where(on, S, 0.0), axis=1)
            tl.store(diagonals_ptr + (segment * H + h) * K_SIZE + i, diagonal, mask=i_in)
        else:
            tl.store(states_ptr + kept_at, S, mask=state_in)
