"""Gated delta rule over whole sequences, in chunks of 64 tokens, in Triton: two kernels.

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
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from arguments import CHUNK, check, check_checkpoints
from chain import chain_kernel
from prepare import prepare_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Walk(NamedTuple):
    """How chain_kernel is cut: value channels a program, warps, and how many chunks ahead it asks for."""

    BV: int
    warps: int
    stages: int


class Blocking(NamedTuple):
    """How all of it is cut. prepare_kernel: warps, and BD channels of v and k at a time. chain_kernel: in one pass, or,
    where `segment` is not 0, in two: for the states at every so many chunks, and for the outputs between them."""

    prepare_warps: int
    BD: int
    segment: int
    outputs: Walk
    states: Walk | None = None


def blocking(head_size: int, pairs: int, dtype: torch.dtype) -> Blocking:
    """For operands of `dtype` and so many (sequence, head) pairs: the one place to tune."""
    BK = padded(head_size)
    if INTERPRETED:  # it charges by the program; both ways are to be seen
        return Blocking(4, BK, 2 if pairs < 4 else 0, Walk(BK, 4, 1), Walk(BK, 4, 1))
    if dtype == torch.float32:  # not tuned: it fits into shared memory, and spills
        return Blocking(8, 64, 0, Walk(32, 8, 2) if BK <= 128 else Walk(16, 8, 1))
    if BK != 128:
        return Blocking(4, 64, 0, Walk(64 if head_size > 32 else 32, 4, 3) if BK == 64 else Walk(32, 8, 2))
    # The walk is serial: narrow slices where pairs are few, for whatever runs beside it is free; in two passes where
    # that is not enough.
    if pairs <= 16:
        return Blocking(4, 64, 8, Walk(128, 8, 3), Walk(16, 4, 3))
    if pairs <= 33:
        return Blocking(4, 64, 0, Walk(32, 4, 3))
    return Blocking(4, 64, 0, Walk(64, 4, 3) if pairs <= 66 else Walk(128, 8, 2))


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (README)."""
    return max(64, triton.next_power_of_2(head_size))


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, gate, k_first, kept=None):
    """kept: where the checkpoints of each sequence start, tokens from one to the next, and the states; or None."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, output, final_state)
    if kept is not None:
        check_checkpoints(*kept, cu_seqlens, final_state)
    starts, interval, checkpoints = kept or (None, None, None)
    total, HQ, D = q.shape
    HK, HV = k.shape[1], v.shape[1]
    num_seqs, H = final_state.shape[:2]
    if num_seqs == 0 or H == 0:
        return

    # bfloat16 is multiplied as it is, T as a sum of two (products.py). Anything else is widened and multiplied as
    # float32.
    bf16 = q.dtype == torch.bfloat16
    operand, terms, precision = (torch.bfloat16, 2, "tf32") if bf16 else (torch.float32, 1, "tf32x3")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    BK = padded(D)
    common = {
        "HQ": HQ, "HK": HK, "H": H, "D": D, "C": CHUNK, "BK": BK,
        "OPERAND": tl.bfloat16 if bf16 else tl.float32, "PRECISION": precision,
    }  # fmt: skip

    cut = blocking(D, num_seqs * H, operand)
    slots = total // CHUNK + num_seqs
    u = output if output.dtype == operand else torch.empty_like(output, dtype=operand)
    w = q.new_empty((slots, H, CHUNK, D), dtype=operand)
    P = q.new_empty((slots, H, CHUNK, CHUNK), dtype=operand)
    decay = q.new_empty((slots, H, 2, CHUNK), dtype=torch.float32)
    if total:
        prepare_kernel[(slots * H,)](
            q, k, v, g, beta, cu_seqlens, u, w, P, decay, num_seqs, total,
            HV=HV, GATE="none" if g is None else gate, HAS_BETA=beta is not None, TERMS=terms, BD=cut.BD,
            num_warps=cut.prepare_warps, **common,
        )  # fmt: skip
    segments = total // (CHUNK * cut.segment) + num_seqs if cut.segment else 0
    states = q.new_empty((segments, H, D, D), dtype=operand) if segments else None

    def walk(name, way, programs):
        checkpointed = kept is not None and name != "outputs"
        chain_kernel[(programs * H * triton.cdiv(D, way.BV),)](
            q, k, cu_seqlens, total, num_seqs, u, w, P, decay, initial_state, states, output, final_state,
            D**-0.5 if scale is None else float(scale),
            starts, checkpoints, len(checkpoints) if kept else None, interval // CHUNK if kept else None,
            HAS_INITIAL=initial_state is not None, HAS_CHECKPOINTS=checkpointed, K_FIRST=k_first,
            PASS=name, SEGMENT=cut.segment, BV=way.BV, STAGES=way.stages, num_warps=way.warps, **common,
        )  # fmt: skip

    if not segments:
        walk("whole", cut.outputs, num_seqs)
    else:
        walk("states", cut.states, num_seqs)
        walk("outputs", cut.outputs, segments)


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """gdn_prefill_k_last: states [num_seqs, H, V, K]; g is alpha itself."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False)


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval,
    output, final_state, checkpoints,
):  # fmt: skip
    """gdn_prefill_checkpoints: as gdn_prefill_k_last; states after every checkpoint_interval tokens are kept."""
    kept = checkpoint_cu_starts, checkpoint_interval, checkpoints
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False, kept=kept)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """gdn_prefill_k_first: states [num_seqs, H, K, V]; alpha = exp(g)."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "log", k_first=True)
