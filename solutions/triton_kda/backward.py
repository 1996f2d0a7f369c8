"""The gradients of Kimi Delta Attention over whole sequences, in chunks of 64 tokens, in Triton.

One chunk of one head, in the notation of kernel.py; `*` is by channels. S [V, K] is the state at its start, dS the
gradient of the one at its end. In the forward pass each token makes an error r and writes U = diag(beta) r:

    r = E (V - (gamma * K) S^T),  E = (I + KK diag(beta))^-1          S <- S Diag(gamma_C) + U^T (Gamma_C,: * K)

With G = scale dO, P = lower(QK), M = (I + diag(beta) KK)^-1, and x the gradient of what a token writes:

    x = M^T (P^T G + (Gamma_C,: * K) dS^T)            dV = diag(beta) x            dbeta_i = x_i . r_i
    dS <- dS Diag(gamma_C) + G^T (gamma * Q) - dV^T (gamma * K)
    dP = lower(G U^T),     B = -strict_lower(dV U^T)
    dQ_i = gamma_i * (G S)_i + sum_j dP_ij Gamma_ij * k_j
    dK_i = Gamma_Ci * (U dS)_i - gamma_i * (dV S)_i
           + sum_j B_ij Gamma_ij * k_j + sum_j Gamma_ji * (dP_ji q_j + B_ji k_j)

and dg_t is the sum of what has alpha_t for a factor: of tokens from t on what they have from S, of tokens before t what
they leave to dS, of pairs i >= t > j what passes between them, and gamma_C times the sum over value channels of S * dS.

decays_kernel, scores_kernel and inverse_kernel (back_prepare.py) make decayed queries and keys, P and M of all chunks
at once. states_kernel (back_walks.py) walks the chunks for S and r, walk_back_kernel back for dS and dV; where pairs of
sequence and head are few, in segments, between which back_scan_kernel goes. within_kernel has dP, B and dbeta;
between_kernel what passes between tokens in channels that forget; queries_kernel and keys_kernel dq, dk and dg.
"""

import os
from typing import NamedTuple

import torch
import triton
from arguments import CHUNK, check_backward
from back_between import between_kernel
from back_gradients import keys_kernel, queries_kernel
from back_prepare import decays_kernel, inverse_kernel, scores_kernel
from back_scan import back_scan_kernel
from back_walks import states_kernel, walk_back_kernel
from back_within import within_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BLOCKS = CHUNK // 16


class Blocking(NamedTuple):
    """How the work is cut, a tuple for each kernel: warps, channels at a time, and how far loads are ahead."""

    decays: tuple[int, int]
    scores: tuple[int, int]
    states: tuple[int, int, int]
    walk: tuple[int, int, int]
    within: tuple[int, int]
    between: tuple[int, int]
    queries: tuple[int, int, int, int]  # channels of keys, then of values
    keys: tuple[int, int, int, int]


def blocking(D: int, room: int) -> Blocking:
    """For heads of D elements, where a block may have `room` bytes of shared memory: the one place to tune.

    From 227 KiB on (sm_90) operands wait in shared memory, and loads of walks are a chunk ahead. With less (163 KiB on
    sm_80, 99 KiB on sm_86 and sm_89) operands are in registers: so tiles have twice as many threads, nothing is loaded
    ahead, and no kernel takes more than 99 KiB.
    """
    B = padded(D)
    if INTERPRETED:  # it charges by the operation
        return Blocking((4, B), (4, B), (4, B, 1), (4, B, 1), (4, B), (4, B), (4, B, B, 1), (4, B, B, 1))
    parts = Blocking((4, 64), (1, 32), (4, 64, 3), (4, 64, 2), (4, 64), (1, 32), (4, 64, 64, 2), (4, 64, 64, 2))
    if room < 227 * 1024:
        parts = parts._replace(states=(8, 64, 1), walk=(8, 64, 1), queries=(8, 64, 64, 1), keys=(8, 64, 64, 1))
    return parts if D <= 128 else parts._replace(states=(8, 64, 1), walk=(8, 64, 1))


def room_of(device: torch.device) -> int:
    """Bytes of shared memory that a block may have."""
    if device.type != "cuda":
        return 227 * 1024
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (README of triton_chunkwise)."""
    return max(64, triton.next_power_of_2(head_size))


def segment_of(num_seqs: int, H: int, total: int, D: int) -> int:
    """Chunks of a segment, where (sequence, head) pairs are few and their sequences long; else 0: whole sequences."""
    chunks = triton.cdiv(total, CHUNK)
    if INTERPRETED:  # both ways are to be seen
        return 2 if num_seqs * H < 3 and total > 2 * CHUNK else 0
    if D > 128 or num_seqs * H > 16 or chunks < 16 * num_seqs:
        return 0
    return max(4, triton.next_power_of_2(chunks * H // 80))


def short(num_seqs: int, total: int) -> bool:
    """Whether most chunks may have few tokens. Their kernels then touch no rows without a token, at the price of
    registers: a table of masks. All else is the same, each bit included."""
    return (triton.cdiv(total, CHUNK) + num_seqs - 1) * CHUNK > 2 * total


class Workspace(NamedTuple):
    """What kernels leave for one another. In the place of P and of the inverse come the gradients of scores; in the
    places of decayed queries and keys, which the walks alone read, the parts of dq and dk that between_kernel has."""

    sums: torch.Tensor  # of gates, from each chunk's start
    decayed: torch.Tensor  # scale gamma * Q, gamma * K, Gamma_C,: * K, and a fourth place
    fall: torch.Tensor  # gamma_C
    P: torch.Tensor
    KK: torch.Tensor
    inverse: torch.Tensor
    ones: torch.Tensor
    chunks: torch.Tensor  # the first token of each slot's chunk, and how many it has
    starts: torch.Tensor
    ends: torch.Tensor
    start_low: torch.Tensor  # eight bits more of each: low.py
    end_low: torch.Tensor
    r: torch.Tensor
    r_low: torch.Tensor
    dv: torch.Tensor
    own: torch.Tensor
    of_walk: torch.Tensor

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.decayed[:2].view(torch.float32), self.decayed[2:].view(torch.float32)


def workspace(q, dv, slots: int, slices: int) -> Workspace:
    (total, H, D), C = dv.shape, CHUNK
    new = lambda *shape, dtype=torch.bfloat16: q.new_empty(shape, dtype=dtype)  # noqa: E731
    f32 = lambda *shape: new(*shape, dtype=torch.float32)  # noqa: E731
    low = lambda *shape: new(*shape, dtype=torch.int8)  # noqa: E731
    return Workspace(
        f32(slots, H, C, D), new(4, slots * H * C * D), f32(slots, H, D), new(slots, H, C, C), f32(slots, H, C, C),
        new(slots, H, C, C), new(3, C, C), new(slots, 2, dtype=torch.int64), new(slots, H, D, D), new(slots, H, D, D),
        low(slots, H, D, D), low(slots, H, D, D), new(total, H, D), low(total, H, D),
        dv if dv.dtype == torch.bfloat16 else new(total, H, D), f32(slots, H, 2, C), f32(slots, H, slices, C),
    )  # fmt: skip


def walks(v, beta, cu_seqlens, initial_state, do, dht, dv, dh0, work, cut):
    """Both walks, over sequences or over segments."""
    (total, H, D), num_seqs, BK = v.shape, len(dh0), padded(v.shape[2])
    segment = segment_of(num_seqs, H, total, D)
    places = triton.cdiv(total, CHUNK * segment) + num_seqs - 1 if segment else num_seqs
    bounds = moves = diagonals = None
    if segment:
        bounds = v.new_empty((places, H, D, D), dtype=torch.float32)
        moves = torch.empty_like(bounds, dtype=torch.bfloat16)
        diagonals = v.new_empty((places, H, D), dtype=torch.float32)
    common = {"H": H, "D": D, "HAS_BETA": beta is not None, "SHORT": short(num_seqs, total), "C": CHUNK, "BK": BK,
              "SEGMENT": segment}  # fmt: skip
    from_q, from_k, to_end, _ = work.decayed

    def forward(name, programs):
        warps, BV, stages = cut.states
        states_kernel[(programs * H * triton.cdiv(D, BV),)](
            v, beta, cu_seqlens, total, num_seqs, from_k, to_end, work.fall, work.inverse, work.r, work.r_low,
            initial_state, work.starts, work.start_low, bounds, moves, diagonals, HAS_INITIAL=initial_state is not None,
            BV=BV, STAGES=stages, PASS=name, num_warps=warps, **common,
        )  # fmt: skip

    def backward(name):
        warps, BV, stages = cut.walk
        walk_back_kernel[(places * H * triton.cdiv(D, BV),)](
            do, beta, cu_seqlens, total, num_seqs, from_q, from_k, to_end, work.fall, work.r, work.r_low,
            work.inverse, work.P, work.dv, dv, dht, work.ends, work.end_low, dh0, bounds, work.of_walk,
            HAS_DHT=dht is not None, APART=work.dv is not dv, BV=BV, STAGES=stages, PASS=name, num_warps=warps,
            **common,
        )  # fmt: skip

    def scan(state, found, reverse):
        back_scan_kernel[(num_seqs * H * triton.cdiv(D, 64),)](
            cu_seqlens, total, num_seqs, state, bounds, moves, diagonals, found, H=H, D=D, HAS_GIVEN=state is not None,
            C=CHUNK, BK=BK, BV=64, STAGES=cut.states[2], SEGMENT=segment, REVERSE=reverse, num_warps=4,
        )  # fmt: skip

    if segment:
        forward("moves", 2 * places)
        scan(initial_state, None, False)
        forward("parts", places)
        backward("moves")
        scan(dht, dh0, True)
        backward("parts")
    else:
        if total:
            forward("whole", num_seqs)
        backward("whole")


def prepare(q, k, g, beta, cu_seqlens, scale, work, cut, slots, size, common):
    """What precedes the walks."""
    (_, HQ, D), H = q.shape, common["H"]
    warps, BD = cut.decays
    decays_kernel[(slots * H * triton.cdiv(D, BD),)](
        q, k, g, cu_seqlens, work.sums, *work.decayed[:3], work.fall, work.ones, work.chunks, scale, *size, HQ=HQ,
        GATE="none" if g is None else "log", SHORT=short(*size), BD=BD, num_warps=warps, **common,
    )  # fmt: skip
    warps, BD = cut.scores
    scores_kernel[(slots * H * BLOCKS,)](
        q, k, work.chunks, work.sums, work.ones, work.P, work.KK, scale, HQ=HQ, SHORT=short(*size), BD=BD,
        num_warps=warps, **common,
    )  # fmt: skip
    inverse_kernel[(slots * H,)](
        beta,
        work.chunks,
        work.KK,
        work.inverse,
        H=H,
        HAS_BETA=beta is not None,
        SHORT=short(*size),
        C=CHUNK,
        num_warps=4,
    )


def gradients(q, k, beta, cu_seqlens, scale, do, dq, dk, dv, dg, dbeta, work, cut, slots, size, common):
    """What follows the walks: all chunks at once."""
    (_, HQ, D), H, (dq_part, dk_part) = q.shape, common["H"], work.parts
    has_beta = {"HAS_BETA": beta is not None}
    warps, BD = cut.within
    within_kernel[(slots * H,)](
        do, beta, cu_seqlens, work.chunks, work.r, work.dv, work.P, work.inverse, work.own, work.of_walk, dbeta, scale,
        *size, SLICES=work.of_walk.shape[2], SHORT=short(*size), BD=BD, num_warps=warps, **has_beta, **common,
    )  # fmt: skip
    warps, BD = cut.between
    between_kernel[(slots * H * triton.cdiv(D, BD) * BLOCKS,)](
        q, k, work.chunks, work.sums, work.P, work.inverse, work.ones, dq_part, dk_part, dg, HQ=HQ, BD=BD,
        SLICE=cut.queries[1], num_warps=warps, **common,
    )  # fmt: skip
    warps, BD, BV, stages = cut.queries
    queries_kernel[(slots * HQ * triton.cdiv(D, BD),)](
        q, k, do, cu_seqlens, work.chunks, work.starts, work.sums, work.P, work.own, work.ones, dq_part, dq, dg, scale,
        *size, HQ=HQ, BD=BD, BV=BV, STAGES=stages, AHEAD=not INTERPRETED and D % BD == 0, num_warps=warps, **common,
    )  # fmt: skip
    warps, BD, BV, stages = cut.keys
    keys_kernel[(slots * HQ * triton.cdiv(D, BD),)](
        q, k, beta, cu_seqlens, work.chunks, work.r, work.dv, work.starts, work.ends, work.start_low, work.end_low,
        work.sums, work.P, work.inverse, work.own, work.ones, dk_part, dk, dv, dg, *size, HQ=HQ, BD=BD, BV=BV,
        STAGES=stages, AHEAD=not INTERPRETED and D % BD == 0, num_warps=warps, **has_beta, **common,
    )  # fmt: skip


def backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0):
    """kda_prefill_backward_k_last: states [num_seqs, H, V, K]; g in log space."""
    check_backward(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    (total, H, D), num_seqs = v.shape, len(dh0)
    scale = D**-0.5 if scale is None else float(scale)
    if do is None:
        do = torch.zeros_like(v)
    cut, slots, size = blocking(D, room_of(q.device)), triton.cdiv(total, CHUNK) + num_seqs - 1, (num_seqs, total)
    if short(*size):  # nothing is ahead in a sequence of one chunk, and two blocks share a multiprocessor
        cut = cut._replace(states=(*cut.states[:2], 1), walk=(*cut.walk[:2], 1))
    common = {"H": H, "D": D, "C": CHUNK}
    work = workspace(q, dv, slots, triton.cdiv(D, cut.walk[1]))
    if total:
        prepare(q, k, g, beta, cu_seqlens, scale, work, cut, slots, size, common)
    walks(v, beta, cu_seqlens, initial_state, do, dht, dv, dh0, work, cut)
    if total:
        gradients(q, k, beta, cu_seqlens, scale, do, dq, dk, dv, dg, dbeta, work, cut, slots, size, common)
