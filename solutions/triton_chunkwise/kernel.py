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


class Blocking(NamedTuple):
    """How work is cut: BD channels of v and k at a time in prepare_kernel, BV value channels a program of chain_kernel,
    and how many chunks ahead that asks for."""

    prepare_warps: int
    BD: int
    BV: int
    chain_warps: int
    stages: int


def blocking(head_size: int, pairs: int, dtype: torch.dtype) -> Blocking:
    """For operands of `dtype` and so many (sequence, head) pairs: the one place to tune."""
    BK = triton.next_power_of_2(head_size)
    if INTERPRETED:
        return Blocking(4, BK, BK, 4, 1)  # it charges by the program
    if dtype == torch.float32:  # not tuned: it fits into shared memory, and spills
        return Blocking(8, min(BK, 64), min(32, BK), 8, 2) if BK <= 128 else Blocking(8, 64, 16, 8, 1)
    if BK > 128:
        return Blocking(4, 64, 32, 8, 2)
    # Narrow slices where there are few pairs: the chain is serial, and whatever runs beside it is free.
    return Blocking(4, min(BK, 64), min(64 if pairs * triton.cdiv(head_size, 64) >= 128 else 32, BK), 4, 3)


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
    BK = triton.next_power_of_2(D)
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
    chain_kernel[(num_seqs * H * triton.cdiv(D, cut.BV),)](
        q, k, cu_seqlens, total, u, w, P, decay, initial_state, output, final_state,
        D**-0.5 if scale is None else float(scale),
        starts, checkpoints, len(checkpoints) if kept else None, interval // CHUNK if kept else None,
        HAS_INITIAL=initial_state is not None, HAS_CHECKPOINTS=kept is not None, K_FIRST=k_first, BV=cut.BV,
        STAGES=cut.stages, num_warps=cut.chain_warps, **common,
    )  # fmt: skip


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
