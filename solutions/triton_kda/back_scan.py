"""From segment to segment in the backward pass: the states at their starts, or the gradients of those at their ends."""

import triton
import triton.language as tl
from back_walks import given_state, store_state
from chunks import slot_of, start_of


@triton.jit(do_not_specialize=["total", "num_seqs"])
def back_scan_kernel(
    cu_seqlens_ptr, total, num_seqs, given_ptr, bounds_ptr, moves_ptr, diagonals_ptr, found_ptr,
    H: tl.constexpr, D: tl.constexpr, HAS_GIVEN: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr, SEGMENT: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """A segment makes of a state S: M S + B, in the layout of back_walks.py. B [K, V] is what it makes of nothing. M is
    Diag(d) + E, and only E is rounded. Where no key touches a channel, d is its decay, and E has zeros. Where keys
    have replaced what was there, both are small. With a decay in the place of d, E would be as large as the decay
    there, and so would be what rounding it leaves.

    The gradient dS goes the other way, by M^T, and what is left is dh0. In the place of B comes the state from which
    back_walks.py goes on.
    """
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start, stop = start_of(cu_seqlens_ptr, n, total), start_of(cu_seqlens_ptr, n + 1, total)
    slot = slot_of(cu_seqlens_ptr, n, total, C * SEGMENT)
    segments = tl.cdiv(stop - start, C * SEGMENT).to(tl.int32)

    j, i, e = tl.arange(0, BK), block * BV + tl.arange(0, BV), tl.arange(0, BK)
    there, inside = (j < D)[:, None] & (i < D)[None, :], (j < D)[:, None] & (e < D)[None, :]
    S = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_GIVEN:
        S += given_state(given_ptr, n, h, i, j, H, D)
    for turn in tl.range(0, segments, num_stages=STAGES):
        segment = turn
        if REVERSE:
            segment = segments - 1 - turn
        nth = (slot + segment) * H + h
        E = tl.load(moves_ptr + nth * (D * D) + j[:, None] * D + e[None, :], mask=inside, other=0.0)
        d = tl.load(diagonals_ptr + nth * D + j, mask=j < D, other=0.0)
        at = bounds_ptr + nth * (D * D) + j[:, None] * D + i[None, :]
        B = tl.load(at, mask=there, other=0.0)
        if REVERSE:
            E = tl.trans(E)
        after = tl.dot(E, S.to(tl.bfloat16), acc=S * d[:, None] + B)
        tl.debug_barrier()  # all of B is read
        tl.store(at, S, mask=there)
        S = after
    if REVERSE:
        store_state(found_ptr, S, n, h, i, j, H, D)
