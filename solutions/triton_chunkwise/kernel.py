"""Gated delta rule over whole sequences, in chunks of 64 tokens, in Triton.

One chunk of one head; rows are tokens; S [V, K] is the state at its start; gamma_i = alpha_1 .. alpha_i, and
Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0. What the tokens write, U [C, V], solves a triangular system:

    A = strict_lower(diag(beta) (Gamma * K K^T))        T = (I + A)^-1 diag(beta)
    U = T (V - diag(gamma) K S^T)
    O = scale (diag(gamma) Q S^T + P U)                 P = Gamma * Q K^T
    S <- gamma_C S + U^T diag(Gamma_C,:) K

U is taken apart, so that nothing but S is waited for:

    U = u - w S^T                                       u = T V,  w = T diag(gamma) K

prepare_kernel (prepare.py) makes u, w, P and the decays of all chunks at once; chain_kernel (chain.py) walks the chunks
of a sequence with a slice of the value channels of S in registers, and writes S where a checkpoint is due. Value
channels never mix, so slices share nothing. u waits in the output's own rows: who reads a part of it writes the output
there.

Where (sequence, head) pairs are few that walk is most of the time. A segment of chunks makes of a state S M + B, so
there chain_kernel walks all segments at once for M and B, scan_kernel (scan.py) goes from segment to segment, and
chain_kernel walks all of them at once again, from the right states, for the output.
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from arguments import CHUNK, check, check_checkpoints
from chain import chain_kernel
from prepare import prepare_kernel
from scan import scan_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Walk(NamedTuple):
    """How a walk is cut: value channels a program, warps, and how many chunks ahead it asks for."""

    BV: int
    warps: int
    stages: int


class Blocking(NamedTuple):
    """How all of it is cut. prepare_kernel: warps, and BD channels of v and k at a time. `outputs`: the walk with the
    output, over sequences, or, where `segment` is not 0, over segments of so many chunks, after `segments` and `scan`.
    """

    prepare_warps: int
    BD: int
    outputs: Walk
    segment: int = 0
    segments: Walk | None = None
    scan: Walk | None = None


def blocking(
    K: int, V: int, num_seqs: int, heads: int, total: int, dtype: torch.dtype, invariant: bool = False
) -> Blocking:
    """For keys of size K and values of size V, operands of `dtype`, and `total` tokens: the one place to tune.
    `invariant`: whatever the batch is, as for one with many pairs; segments take their sums in another order."""
    BK, pairs = padded(K), 1 << 30 if invariant else num_seqs * heads
    if INTERPRETED:  # it charges by the program; both ways are to be seen
        way, BD = Walk(max(BK, padded(V)), 4, 1), min(BK, padded(V))
        return Blocking(4, BD, way, 2, way, way) if pairs < 4 else Blocking(4, BD, way)
    if dtype == torch.float32:  # not tuned: it fits into shared memory, and spills
        return Blocking(8, 64, Walk(32, 8, 2) if BK <= 128 else Walk(16, 8, 1))
    if BK != 128:
        return Blocking(4, 64, Walk(64 if V > 32 and (K in (V, BK)) else 32, 4, 3) if BK == 64 else Walk(32, 8, 2))
    # A walk is serial: where pairs are few, in segments, or in narrow slices. No slice is to be half empty: 192 are
    # three of 64.
    many = Walk(128, 8, 2) if 64 < V <= 128 or V > 192 else Walk(64, 4, 3)
    if pairs <= 33 and total >= 128 * pairs:
        return Blocking(4, 64, many, 16 if total * heads >= 1 << 17 else 8, Walk(64, 4, 3), Walk(16, 4, 3))
    if pairs <= 66:
        return Blocking(4, 64, Walk(32 if pairs <= 33 else 64, 4, 3))
    return Blocking(4, 64, many)


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (README)."""
    return max(64, triton.next_power_of_2(head_size))


def prefill(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, gate, k_first, kept=None, one_size=True,
    invariant=False,
):  # fmt: skip
    """kept: where the checkpoints of each sequence start, tokens from one to the next, and the states; or None."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, output, final_state, one_size)
    if kept is not None:
        check_checkpoints(*kept, cu_seqlens, final_state)
    starts, interval, checkpoints = kept or (None, None, None)
    total, HQ, K = q.shape
    HK, (HV, V) = k.shape[1], v.shape[1:]
    num_seqs, H = final_state.shape[:2]
    if num_seqs == 0 or H == 0:
        return

    # bfloat16 is multiplied as it is, T as a sum of two (products.py). Anything else is widened and multiplied as
    # float32.
    bf16 = q.dtype == torch.bfloat16
    operand, terms, precision = (torch.bfloat16, 2, "tf32") if bf16 else (torch.float32, 1, "tf32x3")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    BK = padded(K)
    common = {
        "H": H, "K_SIZE": K, "V_SIZE": V, "C": CHUNK, "BK": BK,
        "OPERAND": tl.bfloat16 if bf16 else tl.float32, "PRECISION": precision,
    }  # fmt: skip

    cut = blocking(K, V, num_seqs, H, total, operand, invariant)
    slots = triton.cdiv(total, CHUNK) + num_seqs - 1
    u = output if output.dtype == operand else torch.empty_like(output, dtype=operand)
    w = q.new_empty((slots, H, CHUNK, K), dtype=operand)
    P = q.new_empty((slots, H, CHUNK, CHUNK), dtype=operand)
    decay = q.new_empty((slots, H, 2, CHUNK), dtype=torch.float32)
    if total:
        prepare_kernel[(slots * H,)](
            q, k, v, g, beta, cu_seqlens, u, w, P, decay, num_seqs, total,
            HQ=HQ, HK=HK, HV=HV, GATE="none" if g is None else gate, HAS_BETA=beta is not None, TERMS=terms, BD=cut.BD,
            num_warps=cut.prepare_warps, **common,
        )  # fmt: skip
    states = {"HAS_INITIAL": initial_state is not None, "K_FIRST": k_first, "SEGMENT": cut.segment}
    segments = triton.cdiv(total, CHUNK * cut.segment) + num_seqs - 1 if cut.segment else 0
    starts_of_segments, moves, diagonals = None, None, None
    if segments:
        starts_of_segments = q.new_empty((segments, H, V, K), dtype=torch.float32)
        moves = q.new_empty((segments, H, K, K), dtype=operand)
        diagonals = q.new_empty((segments, H, K), dtype=torch.float32)

    def walk(name, way, programs):
        # Programs that walk from the identity have rows of keys, and are as many as those that have rows of values.
        rows = max(K, V) if name == "segments" else V
        chain_kernel[(programs * H * triton.cdiv(rows, way.BV),)](
            q, k, cu_seqlens, total, num_seqs, u, w, P, decay, initial_state, starts_of_segments, moves, diagonals,
            output, final_state, K**-0.5 if scale is None else float(scale),
            starts, checkpoints, len(checkpoints) if kept else None, interval // CHUNK if kept else None,
            HAS_CHECKPOINTS=kept is not None, PASS=name, BV=way.BV, STAGES=way.stages, num_warps=way.warps,
            HQ=HQ, HK=HK, **states, **common,
        )  # fmt: skip

    if not segments:
        walk("whole", cut.outputs, num_seqs)
        return
    walk("segments", cut.segments, 2 * segments)
    way = cut.scan
    scan_kernel[(num_seqs * H * triton.cdiv(V, way.BV),)](
        cu_seqlens, total, num_seqs, initial_state, starts_of_segments, moves, diagonals, final_state,
        BV=way.BV, STAGES=way.stages, num_warps=way.warps, **states, **common,
    )  # fmt: skip
    walk("outputs", cut.outputs, segments)


def prefill_k_last(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, invariant=False
):  # fmt: skip
    """gdn_prefill_k_last: states [num_seqs, H, V, K]; g is alpha itself."""
    prefill(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False,
        invariant=invariant,
    )  # fmt: skip


def prefill_k_last_kv_dims(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, invariant=False
):  # fmt: skip
    """gdn_prefill_k_last_kv_dims: as gdn_prefill_k_last, whatever the sizes of keys and values."""
    prefill(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False,
        one_size=False, invariant=invariant,
    )  # fmt: skip


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval,
    output, final_state, checkpoints, invariant=False,
):  # fmt: skip
    """gdn_prefill_checkpoints: as gdn_prefill_k_last; states after every checkpoint_interval tokens are kept."""
    kept = checkpoint_cu_starts, checkpoint_interval, checkpoints
    prefill(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False, kept=kept,
        invariant=invariant,
    )  # fmt: skip


def prefill_k_first(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, invariant=False
):  # fmt: skip
    """gdn_prefill_k_first: states [num_seqs, H, K, V]; alpha = exp(g)."""
    prefill(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "log", k_first=True,
        invariant=invariant,
    )  # fmt: skip
