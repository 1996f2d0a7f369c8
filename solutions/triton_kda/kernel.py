"""Kimi Delta Attention over whole sequences, in chunks of 64 tokens, in Triton.

Gated delta rule with a decay of each key channel. One chunk of one head; rows are tokens; S [V, K] is the state at its
start; gamma_i = alpha_1 .. alpha_i, a vector of key channels, and Gamma_ij = alpha_{j+1} .. alpha_i for i >= j. What
the tokens write, U [C, V], solves a triangular system:

    KK_ij = sum over channels c of k_ic Gamma_ijc k_jc      QK_ij = the same of q_i and k_j
    A = strict_lower(diag(beta) KK)                         T = (I + A)^-1 diag(beta)
    U = T (V - (gamma * K) S^T)
    O = scale ((gamma * Q) S^T + P U)                       P = lower(QK)
    S <- S Diag(gamma_C) + U^T (Gamma_C,: * K)

U is taken apart, so that nothing but S is waited for:

    U = u - w S^T                                           u = T V,  w = T (gamma * K)

prepare_kernel (prepare.py) makes u, w, P, gamma * Q, Gamma_C,: * K and gamma_C of all chunks at once, without a
quotient of decays (scores.py); chain_kernel (chain.py) walks the chunks of a sequence with a slice of the value
channels of S in registers. Value channels never mix, so slices share nothing. u waits in the output's own rows: who
reads a part of it writes the output there.

Where (sequence, head) pairs are few that walk is most of the time. A segment of chunks makes of a state S M + B, so
there chain_kernel walks all segments at once for M and B, scan_kernel (scan.py) goes from segment to segment, and
chain_kernel walks all of them at once again, from the right states, for the output.
"""

import os
from typing import NamedTuple

import torch
import triton
from arguments import CHUNK, check, check_checkpoints, check_raw
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
    """How all of it is cut. prepare_kernel: warps, and BD channels at a time. `outputs`: the walk with the output, over
    sequences, or, where `segment` is not 0, over segments of so many chunks, after `segments` and `scan`.
    """

    prepare_warps: int
    BD: int
    outputs: Walk
    segment: int = 0
    segments: Walk | None = None
    scan: Walk | None = None
    guard: bool = True
    registers: int | None = None


def blocking(K: int, num_seqs: int, heads: int, total: int) -> Blocking:
    """For heads of size K and `total` tokens: the one place to tune."""
    BK, pairs = padded(K), num_seqs * heads
    if INTERPRETED:  # it charges by the program; both ways are to be seen
        way = Walk(BK, 4, 1)
        return Blocking(4, BK, way, 2, way, way) if pairs < 4 else Blocking(4, BK, way)
    if BK == 64:
        return Blocking(4, 64, Walk(64, 4, 3))
    many = Walk(128, 8, 2)
    if pairs <= 33 and total >= 128 * pairs:
        return Blocking(4, 64, many, 16 if total * heads >= 1 << 17 else 8, Walk(64, 4, 3), Walk(16, 4, 3))
    if pairs <= 66:
        return Blocking(4, 64, Walk(32 if pairs <= 33 else 64, 4, 3))
    return Blocking(4, 64, many)


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (README of triton_chunkwise)."""
    return max(64, triton.next_power_of_2(head_size))


class Raw(NamedTuple):
    """What makes decays of raw gates (gates.py), and whether q and k are normalised."""

    A_log: torch.Tensor
    dt_bias: torch.Tensor
    lower_bound: float | None
    normalise: bool

    @property
    def gate(self):
        return "bounded" if self.lower_bound else "softplus"  # 0 stands for no bound


def prefill(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, k_first, raw=None, kept=None
):  # fmt: skip
    """With `raw`, g and beta are raw gates. kept: where the checkpoints of each sequence start, tokens from one to the
    next, and the states; or None."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, output, final_state)
    if raw is not None:
        check_raw(raw, g, beta, v)
    if kept is not None:
        check_checkpoints(*kept, cu_seqlens, final_state)
    starts, interval, checkpoints = kept or (None, None, None)
    total, HQ, K = q.shape
    num_seqs, H = final_state.shape[:2]
    if num_seqs == 0:
        return
    common = {"H": H, "K_SIZE": K, "V_SIZE": K, "C": CHUNK, "BK": padded(K)}
    cut = blocking(K, num_seqs, H, total)
    slots = triton.cdiv(total, CHUNK) + num_seqs - 1
    w, from_start, to_end = (q.new_empty((slots, H, CHUNK, K)) for _ in range(3))
    P = q.new_empty((slots, H, CHUNK, CHUNK))
    fall = q.new_empty((slots, H, K), dtype=torch.float32)
    cap = {} if cut.registers is None else {"maxnreg": cut.registers}
    if total:
        gate = "none" if g is None else "log" if raw is None else raw.gate
        A_log, dt_bias, bound = (None, None, 0.0) if raw is None else (*raw[:2], float(raw.lower_bound or 0.0))
        prepare_kernel[(slots * H,)](
            q, k, v, g, beta, A_log, dt_bias, bound, cu_seqlens,
            output, w, from_start, to_end, P, fall, num_seqs, total,
            HQ=HQ, GATE=gate, BETA="none" if beta is None else "raw" if raw is None else "sigmoid",
            NORM=raw is not None and raw.normalise, GUARD=cut.guard, BD=cut.BD, AHEAD=not INTERPRETED,
            num_warps=cut.prepare_warps, **cap, **common,
        )  # fmt: skip
    states = {"HAS_INITIAL": initial_state is not None, "K_FIRST": k_first, "SEGMENT": cut.segment}
    segments = triton.cdiv(total, CHUNK * cut.segment) + num_seqs - 1 if cut.segment else 0
    starts_of_segments, moves, diagonals = None, None, None
    if segments:
        starts_of_segments = q.new_empty((segments, H, K, K), dtype=torch.float32)
        moves = q.new_empty((segments, H, K, K))
        diagonals = q.new_empty((segments, H, K), dtype=torch.float32)

    def walk(name, way, programs):
        chain_kernel[(programs * H * triton.cdiv(K, way.BV),)](
            cu_seqlens, total, num_seqs, output, w, from_start, to_end, P, fall, initial_state, starts_of_segments,
            moves, diagonals, output, final_state, K**-0.5 if scale is None else float(scale),
            starts, checkpoints, len(checkpoints) if kept else None, interval // CHUNK if kept else None,
            HAS_CHECKPOINTS=kept is not None, PASS=name, BV=way.BV, STAGES=way.stages, num_warps=way.warps,
            **states, **common,
        )  # fmt: skip

    if not segments:
        walk("whole", cut.outputs, num_seqs)
        return
    walk("segments", cut.segments, 2 * segments)
    way = cut.scan
    scan_kernel[(num_seqs * H * triton.cdiv(K, way.BV),)](
        cu_seqlens, total, num_seqs, initial_state, starts_of_segments, moves, diagonals, final_state,
        BV=way.BV, STAGES=way.stages, num_warps=way.warps, **states, **common,
    )  # fmt: skip
    walk("outputs", cut.outputs, segments)


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """kda_prefill_k_last: states [num_seqs, H, V, K]; g in log space."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, k_first=False)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """kda_prefill_k_first: states [num_seqs, H, K, V]; g in log space."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, k_first=True)


def prefill_raw_gates(
    q, k, v, A_log, a, dt_bias, b, cu_seqlens, initial_state, lower_bound, scale, use_qk_l2norm, output, final_state
):  # fmt: skip
    """kda_prefill_raw_gates: raw gates of either kind; q and k are normalised unless use_qk_l2norm is False."""
    raw = Raw(A_log, dt_bias, lower_bound, use_qk_l2norm is None or bool(use_qk_l2norm))
    prefill(q, k, v, a, b, cu_seqlens, initial_state, scale, output, final_state, k_first=False, raw=raw)


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval,
    output, final_state, checkpoints,
):  # fmt: skip
    """kda_prefill_checkpoints: as kda_prefill_k_last; states after every checkpoint_interval tokens are kept."""
    kept = checkpoint_cu_starts, checkpoint_interval, checkpoints
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, k_first=False, kept=kept)
