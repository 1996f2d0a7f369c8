"""The gradients of the gated delta rule over whole sequences, in chunks of 64 tokens, in Triton.

One chunk of one head; rows are tokens; S [V, K] is the state at its start, dS the gradient of the one at its end;
gamma_i = alpha_1 .. alpha_i, and Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0. In the forward pass each token
makes an error r and writes U = diag(beta) r:

    N = strict_lower(Gamma * K K^T)      E = (I + N diag(beta))^-1      P = Gamma * Q K^T
    r = E (V - diag(gamma) K S^T)        O = scale (diag(gamma) Q S^T + P U)
    S <- gamma_C S + U^T diag(Gamma_C,:) K

With G = scale dO, x the gradient of what a token writes, and M = (I + diag(beta) N)^-1:

    x = M^T (P^T G + diag(Gamma_C,:) K dS^T)             dv = diag(beta) x            dbeta_i = x_i . r_i
    dS <- gamma_C dS + (diag(gamma) G)^T Q - (diag(gamma) dv)^T K
    dP = lower(G U^T)        dA = -strict_lower(dv U^T)                               (of A = diag(beta) N, times beta)
    dq = diag(gamma) G S + (dP * Gamma) K
    dk = (dP * Gamma)^T Q + (B + B^T) K - diag(gamma) dv S + diag(Gamma_C,:) U dS     B = dA * Gamma

prepare_kernel (prepare.py) makes M and P, of all chunks at once. forward_kernel (walks.py) walks the chunks
for S and r, backward_kernel back for dS and dv; where pairs of sequence and head are few, in segments, between which
scan_kernel (scan.py) goes. within_kernel (within.py) and gradients_kernel (gradients.py) take all chunks at once again:
the first has what passes between tokens, the second dq and dk. gates_kernel (gates.py) has dg. decays.py knows gates.
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from arguments import CHUNK, check, check_raw
from around import across, gates_of, through_gates, unit
from gates import gates_kernel, steep_kernel
from gradients import gradients_kernel, shared_kernel
from prepare import prepare_kernel
from scan import scan_kernel
from walks import backward_kernel, forward_kernel
from within import within_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHORT = 512  # tokens per sequence, on average, up to which walks load two chunks ahead
STEEP_CHANNELS = 64  # at a time, in steep_kernel, which seldom has any


class Blocking(NamedTuple):
    """How the work is cut, a tuple for each kernel: warps, registers per thread where they are to be fewer than ptxas
    takes (0: as many as it takes), then channels at a time, then how far loads are ahead."""

    prepare: tuple[int, int, int]
    forward: tuple[int, int, int, int]
    backward: tuple[int, int, int, int]
    within: tuple[int, int, int]
    gradients: tuple[int, int, int, int, int]  # channels of keys, then of values


def blocking(D: int, dtype: torch.dtype) -> Blocking:
    """For heads of D elements and operands of `dtype`: the one place to tune. No kernel for head sizes up to 128 may
    take more than 227 KiB of shared memory, or spill much (README)."""
    B = padded(D)
    if INTERPRETED:  # it charges by the operation
        return Blocking((4, 0, B), (4, 0, B, 1), (4, 0, B, 1), (4, 0, B), (4, 0, B, B, 1))
    if dtype == torch.float32:  # products by multiply-adds: all of a slice is in registers
        return Blocking((8, 0, 16), (8, 0, 16, 1), (8, 0, 16, 1), (16, 0, 32), (8, 0, 16, 16, 1))
    if D > 128:
        return Blocking((4, 0, 64), (8, 0, 64, 2), (8, 0, 64, 1), (4, 0, 64), (4, 0, 64, 64, 1))
    return Blocking((4, 128, 64), (4, 0, 64, 4), (4, 0, 64, 3), (4, 168, B), (4, 0, 64, 64, 2))


def segment_of(num_seqs: int, H: int, total: int, D: int, operand) -> int:
    """Chunks of a segment, where (sequence, head) pairs are few and their sequences long; else 0: whole sequences."""
    chunks = triton.cdiv(total, CHUNK)
    if INTERPRETED:  # both ways are to be seen
        return 2 if num_seqs * H < 4 and total else 0
    if operand != tl.bfloat16 or D > 128 or num_seqs * H > 16 or chunks < 16 * num_seqs:
        return 0
    return max(4, triton.next_power_of_2(chunks * H // 80))


def ahead(stages: int, device: torch.device) -> int:
    """How far loads may be ahead in a walk: as far as they should where a multiprocessor has 227 KiB of shared memory
    (sm_90), else two chunks (163 KiB, sm_80) or one."""
    if device.type != "cuda":
        return stages
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return stages if room >= 227 * 1024 else min(stages, 2 if room >= 163 * 1024 else 1)


def launch(warps: int, registers: int) -> dict[str, int]:
    """Options of a launch. Only Triton's CUDA backend knows of a limit of registers."""
    limit = {"maxnreg": registers} if registers and not torch.version.hip else {}
    return {"num_warps": warps} | limit


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (triton_chunkwise)."""
    return max(64, triton.next_power_of_2(head_size))


class Workspace(NamedTuple):
    """What kernels leave for one another (README). dv is in its own rows, where each head has some."""

    starts: torch.Tensor
    ends: torch.Tensor
    r: torch.Tensor
    dv: torch.Tensor
    inverse: torch.Tensor
    P: torch.Tensor
    later: torch.Tensor
    decay: torch.Tensor


def workspace(q, dv, dh0, slots: int, dtype: torch.dtype) -> Workspace:
    total, _, D = q.shape
    HV, H = dv.shape[1], dh0.shape[1]
    new = lambda *shape: q.new_empty(shape, dtype=dtype)  # noqa: E731
    return Workspace(
        new(slots, H, D, D), new(slots, H, D, D), new(total, H, D),
        dv if dv.dtype == dtype and HV == H else new(total, H, D), new(slots, H, CHUNK, CHUNK),
        new(slots, H, CHUNK, CHUNK), new(CHUNK, CHUNK), q.new_empty((slots, H, 8, CHUNK), dtype=torch.float32),
    )  # fmt: skip


def walk(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dh0, work, cut, slots, states, gates, norm, common,
):  # fmt: skip
    """What precedes the walks, and the walks. Returns what the second leaves in float32."""
    (total, HQ, D), (num_seqs, H), HV, BK = q.shape, dh0.shape[:2], v.shape[1], padded(q.shape[2])
    segment = segment_of(num_seqs, H, total, D, common["OPERAND"])
    places = triton.cdiv(total, CHUNK * segment) + num_seqs - 1 if segment else num_seqs
    bounds = moves = falls = None
    if segment:
        bounds = q.new_empty((places, H, D, D), dtype=torch.float32)
        moves, falls = torch.empty_like(bounds, dtype=work.r.dtype), q.new_empty((places, H), dtype=torch.float32)
    if total:
        warps, registers, BD = cut.prepare
        prepare_kernel[(slots * H,)](
            q, k, g, beta, cu_seqlens, work.inverse, work.P, work.decay, work.later, scale, num_seqs, total,
            HQ=HQ, BK=BD, **launch(warps, registers), **gates, **norm, **common,
        )  # fmt: skip

    short = total <= SHORT * num_seqs  # two programs per multiprocessor are better there than loads far ahead

    def forward(name, programs):
        warps, registers, BV, stages = cut.forward
        stages = min(stages, 2) if short else stages
        forward_kernel[(programs * H * triton.cdiv(D, BV),)](
            k, v, cu_seqlens, total, num_seqs, work.inverse, work.r, work.decay, initial_state, work.starts, bounds,
            moves, falls, HV=HV, HAS_INITIAL=states["HAS_INITIAL"], K_FIRST=states["K_FIRST"], BK=BK, BV=BV,
            STAGES=ahead(stages, q.device), PASS=name, SEGMENT=segment, **launch(warps, registers), **common,
        )  # fmt: skip

    warps, registers, BV, stages = cut.backward
    stages = min(stages, 2) if short else stages
    slices = triton.cdiv(D, BV)
    of_walk = q.new_empty((slots, H, slices, CHUNK), dtype=torch.float32)

    def backward(name):
        backward_kernel[(places * H * slices,)](
            q, k, do, cu_seqlens, total, num_seqs, work.r, work.inverse, work.P, work.dv, work.decay, dht, work.ends,
            dh0, bounds, of_walk, scale, HQ=HQ, HAS_DHT=states["HAS_DHT"], K_FIRST=states["K_FIRST"], BK=BK, BV=BV,
            STAGES=ahead(stages, q.device), PASS=name, SEGMENT=segment, **launch(warps, registers), **norm, **common,
        )  # fmt: skip

    def scan(given, found, reverse):
        scan_kernel[(num_seqs * H * triton.cdiv(D, 64),)](
            cu_seqlens, total, num_seqs, given, bounds, moves, falls, found, H=H, D=D, HAS_GIVEN=given is not None,
            K_FIRST=states["K_FIRST"], OPERAND=common["OPERAND"], PRECISION=common["PRECISION"], C=CHUNK, BK=BK,
            BV=64, STAGES=ahead(2, q.device), SEGMENT=segment, REVERSE=reverse, **launch(4, 0),
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
    return of_walk


def gradients(
    q, k, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, work, of_walk, cut, slots, states,
    gates, norm, common,
):  # fmt: skip
    """What follows the walks: all chunks at once."""
    (total, HQ, D), HK, HV, H = q.shape, k.shape[1], dv.shape[1], common["H"]
    num_seqs = cu_seqlens.numel() - 1
    between = q.new_empty((slots, H, CHUNK), dtype=torch.float32)
    warps, registers, BD = cut.within
    within_kernel[(slots * H,)](
        k, do, cu_seqlens, work.r, work.dv, work.decay, work.later, work.inverse, work.P, between, scale, num_seqs,
        total, HQ=HQ, BD=BD, **launch(warps, registers), **norm, **common,
    )  # fmt: skip
    warps, registers, BK, BV, stages = cut.gradients
    slices, turns = triton.cdiv(D, BK), triton.cdiv(D, BV)
    of_gradients = {name: x for name, x in common.items() if name != "TERMS"}
    sums = q.new_empty((slots, H, slices * turns, 3, CHUNK), dtype=torch.float32)
    gradients_kernel[(slots * HK * slices,)](
        q, k, do, cu_seqlens, initial_state, dht, work.r, work.dv, work.starts, work.ends, work.decay, work.P,
        work.inverse, dq, dk, dv, sums, scale, num_seqs, total,
        HQ=HQ, HV=HV, BK=BK, BV=BV, STAGES=ahead(stages, q.device), **launch(warps, registers), **states,
        **norm, **of_gradients,
    )  # fmt: skip
    if work.dv is not dv:
        shared_kernel[(slots * HV,)](
            cu_seqlens, work.dv, dv, num_seqs, total, HV=HV, H=H, D=D, C=CHUNK, BD=BV, **launch(warps, 0),
        )  # fmt: skip
    of_gates = {"H": H, "C": CHUNK, "KEY_SLICES": slices * turns}
    gates_kernel[(slots * H,)](
        g, cu_seqlens, work.decay, between, sums, of_walk, dg, dbeta, num_seqs, total, GATE=gates["GATE"],
        VALUE_SLICES=of_walk.shape[2], **launch(1, 0), **of_gates,
    )  # fmt: skip
    if gates["GATE"] == "linear":
        heads = min(4, H & -H)  # a power of two that divides H
        steep_kernel[(slots * (H // heads),)](
            q, k, g, beta, do, cu_seqlens, work.r, work.dv, sums, dg, scale, num_seqs, total,
            HQ=HQ, HK=HK, D=D, HAS_BETA=gates["HAS_BETA"], OPERAND=common["OPERAND"], PRECISION=common["PRECISION"],
            BD=STEEP_CHANNELS, HEADS=heads, **launch(4, 0), **of_gates,
        )  # fmt: skip


def backward(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, gate, k_first, strict,
    rstd_q=None,
):  # fmt: skip
    """rstd_q [total, HQ]: factors of the queries; dq is then that of a query with its factor held."""
    (total, _, D), (num_seqs, H) = q.shape, dh0.shape[:2]
    scale = D**-0.5 if scale is None else float(scale)
    if do is None:
        do = q.new_zeros((total, H, D))

    # bfloat16 is multiplied as it is. Anything else is widened, and multiplied as float32; so is all if it is `strict`.
    bf16 = q.dtype == torch.bfloat16 and not strict
    operand, terms, precision = (torch.bfloat16, 2, "tf32") if bf16 else (torch.float32, 1, "ieee")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    cut, slots = blocking(D, operand), triton.cdiv(total, CHUNK) + num_seqs - 1
    common = {"HK": k.shape[1], "H": H, "D": D, "C": CHUNK, "OPERAND": tl.bfloat16 if bf16 else tl.float32}
    common |= {"TERMS": terms, "PRECISION": precision}
    gates = {"GATE": "none" if g is None else gate, "HAS_BETA": beta is not None}
    norm = {"norm_ptr": rstd_q, "NORMED": rstd_q is not None}
    states = {"HAS_INITIAL": initial_state is not None, "HAS_DHT": dht is not None, "K_FIRST": k_first}
    work = workspace(q, dv, dh0, slots, operand)
    of_walk = walk(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dh0, work, cut, slots, states, gates, norm, common
    )
    if total:
        gradients(
            q, k, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, work, of_walk, cut, slots,
            states, gates, norm, common,
        )  # fmt: skip


def backward_k_last(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, strict=False
):  # fmt: skip
    """gdn_prefill_backward_k_last: states [num_seqs, H, V, K]; g is alpha itself, and dg its gradient."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    backward(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, "linear",
        k_first=False, strict=strict,
    )  # fmt: skip


def backward_k_first(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, strict=False
):  # fmt: skip
    """gdn_prefill_backward_k_first: states [num_seqs, H, K, V]; alpha = exp(g), and dg = alpha dalpha."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    backward(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, "log",
        k_first=True, strict=strict,
    )  # fmt: skip


def backward_raw_gates(
    q, k, v, a, b, A_log, dt_bias, cu_seqlens, initial_state, scale, use_qk_l2norm, do, dht,
    dq, dk, dv, da, db, dA_log, ddt_bias, dh0, strict=False,
):  # fmt: skip
    """gdn_prefill_backward_raw_gates: states [num_seqs, H, V, K]; the norm is taken unless it is False."""
    check(q, k, v, None, None, cu_seqlens, initial_state, do, dht, dq, dk, dv, None, None, dh0)
    check_raw(q, dh0.shape[1], a, b, A_log, dt_bias, da, db, dA_log, ddt_bias)
    normed = use_qk_l2norm is None or bool(use_qk_l2norm)
    log_alpha, beta, to_a, to_b = gates_of(a, b, A_log, dt_bias)
    dg, dbeta = torch.empty_like(log_alpha), torch.empty_like(beta)
    # A query's norm is a factor of its products: so q is not rounded again. dq and dk go on in float32, and are rounded
    # once.
    (Q, rstd_q), (K, rstd_k) = (unit(q), unit(k)) if normed else ((q, None), (k, None))
    dQ, dK = (torch.empty_like(x) if normed else dx for x, dx in ((Q, dq), (K, dk)))
    rows = torch.float32 if strict else q.dtype
    dV = dv.float() if strict else dv
    backward(
        q.to(rows), K.to(rows), v.to(rows), log_alpha, beta, cu_seqlens, initial_state, scale,
        None if do is None else do.to(rows), dht, dQ, dK, dV, dg, dbeta, dh0, "log", k_first=False, strict=strict,
        rstd_q=rstd_q,
    )  # fmt: skip
    if strict:
        dv.copy_(dV)
    inside = (torch.arange(q.shape[0], device=q.device) < cu_seqlens[-1])[:, None]
    if normed:
        for dx, y, dy in ((dq, Q, dQ), (dk, K, dK * rstd_k)):
            dx.copy_(torch.where(inside[..., None], across(y, dy), 0.0))
    through_gates(inside, dg, dbeta, log_alpha, to_a, to_b, da, db, dA_log, ddt_bias)
