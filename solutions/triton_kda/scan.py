"""From segment to segment: the states at their starts, and the final one."""

import triton
import triton.language as tl
from chunks import slot_of, start_of


@triton.jit(do_not_specialize=["total", "num_seqs"])
def scan_kernel(
    cu_seqlens_ptr, total, num_seqs, initial_ptr, states_ptr, moves_ptr, diagonals_ptr, final_ptr,
    H: tl.constexpr, K_SIZE: tl.constexpr, V_SIZE: tl.constexpr, HAS_INITIAL: tl.constexpr, K_FIRST: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr, SEGMENT: tl.constexpr,
):  # fmt: skip
    """A segment makes of a state S: S M + B. B [V, K] is what it makes of nothing, M [K, K] what it makes of the
    identity without u. M is Diag(d) + E, and only E is rounded. Where no key touches a channel, d is its decay, and E
    has zeros. Where keys have replaced what was there, both are small. With a decay in the place of d, E would be as
    large as the decay there, and so would be what rounding it leaves.

    In the place of B comes the state at the segment's start.
    """
    SLICES: tl.constexpr = (V_SIZE + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start, stop = start_of(cu_seqlens_ptr, n, total), start_of(cu_seqlens_ptr, n + 1, total)
    slot = slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)
    segments = tl.cdiv(stop - start, C * SEGMENT).to(tl.int32)

    j = tl.arange(0, BK)
    i = block * BV + tl.arange(0, BV)
    state_in = (i < V_SIZE)[:, None] & (j < K_SIZE)[None, :]
    state_at = j[None, :] * V_SIZE + i[:, None] if K_FIRST else i[:, None] * K_SIZE + j[None, :]
    state = (n * H + h).to(tl.int64) * (V_SIZE * K_SIZE)
    if HAS_INITIAL:
        S = tl.load(initial_ptr + state + state_at, mask=state_in, other=0.0)
    else:
        S = tl.zeros([BV, BK], dtype=tl.float32)

    # B comes a turn ahead, and the state is written over it after a product, where all threads have met.
    at = (slot * H + h) * (V_SIZE * K_SIZE) + i[:, None] * K_SIZE + j[None, :]
    B = tl.load(states_ptr + at, mask=state_in & (segments > 0), other=0.0)
    for segment in tl.range(0, segments, num_stages=STAGES):
        nth = (slot + segment) * H + h
        move_in = (j < K_SIZE)[:, None] & (j < K_SIZE)[None, :]
        E = tl.load(moves_ptr + nth * (K_SIZE * K_SIZE) + j[:, None] * K_SIZE + j[None, :], mask=move_in, other=0.0)
        d = tl.load(diagonals_ptr + nth * K_SIZE + j, mask=j < K_SIZE, other=0.0)
        before, here = S, B
        B = tl.load(states_ptr + at + H * V_SIZE * K_SIZE, mask=state_in & (segment + 1 < segments), other=0.0)
        S = tl.dot(S.to(tl.bfloat16), E, acc=S * d[None, :] + here)
        tl.store(states_ptr + at, before, mask=state_in)
        at += H * V_SIZE * K_SIZE
    tl.store(final_ptr + state + state_at, S, mask=state_in)
