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

prepare_kernel (prepare.py) makes what needs no state, of all chunks at once. forward_kernel (walks.py) walks the chunks
for S and r, backward_kernel back for dS and x. within_kernel (within.py) and beside_kernel (beside.py) take all chunks
at once again: the first has what passes between tokens, the second what passes through states. decays.py has the gates.
"""

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from arguments import CHUNK, check, check_raw
from around import across, gates_of, through_gates, unit
from beside import beside_kernel
from edges import edges_kernel
from gates import gates_kernel
from prepare import prepare_kernel
from walks import backward_kernel, forward_kernel
from within import within_kernel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Blocking(NamedTuple):
    """How the work is cut, a tuple for each kernel: warps, then channels at a time, then how far loads are ahead."""

    prepare: tuple[int, int, int]  # channels that are summed over, then those of a result
    forward: tuple[int, int, int]
    backward: tuple[int, int, int]
    within: tuple[int, int, int]
    beside: tuple[int, int, int, int]  # channels of keys, then of values
    gates: tuple[int, int]


def blocking(D: int, dtype: torch.dtype) -> Blocking:
    """For heads of D elements and operands of `dtype`: the one place to tune. No kernel for head sizes up to 128 may
    take more than 227 KiB of shared memory, or spill much (README)."""
    B = padded(D)
    if INTERPRETED:  # it charges by the operation
        return Blocking((4, B, B), (4, B, 1), (4, B, 1), (4, B, 1), (4, B, B, 1), (4, 64))
    if dtype == torch.float32:  # products by multiply-adds: all of a slice is in registers
        return Blocking((8, 16, 16), (8, 16, 1), (8, 16, 1), (16, 32, 1), (8, 16, 16, 1), (16, 16))
    if D > 128:
        return Blocking((4, B, 64), (8, 64, 2), (8, 64, 1), (4, 64, 1), (4, 64, 64, 1), (4, 64))
    return Blocking((4, B, 64), (4, 64, 3), (4, 64, 2), (4, 64, 1), (4, 64, 64, 1), (4, 64))


def padded(head_size: int) -> int:
    """Channels with those that are masked. At least 64: of products with 32 columns Triton 3.6 makes wrong ones on
    sm_90 (triton_chunkwise)."""
    return max(64, triton.next_power_of_2(head_size))


class Workspace(NamedTuple):
    """What kernels leave for one another (README). w is done with before the first dS is stored, and z before the
    matrices of a chunk are; x waits in the rows of dv, where each head has some."""

    starts: torch.Tensor
    ends: torch.Tensor  # w, then dS
    r: torch.Tensor
    x: torch.Tensor
    of_scores: torch.Tensor  # z, then these and the next
    of_keys: torch.Tensor
    later: torch.Tensor
    decay: torch.Tensor
    rest_of_r: torch.Tensor | None
    rest_of_x: torch.Tensor | None


def workspace(q, k, dv, dh0, slots: int, dtype: torch.dtype, ends_given: bool) -> Workspace:
    total, HQ, D = q.shape
    HK, HV, (num_seqs, H) = k.shape[1], dv.shape[1], dh0.shape[:2]
    new = lambda *shape: q.new_empty(shape, dtype=dtype)  # noqa: E731
    score_heads = H if HQ > HK else HK
    z = new(slots * CHUNK * max(H * D, (score_heads + HK) * CHUNK))
    rests = (new(num_seqs, H, 2, CHUNK, D) if ends_given else None for _ in range(2))
    return Workspace(
        new(slots, H, D, D), new(slots * H * max(D * D, CHUNK * max(CHUNK, D))), new(total, H, D),
        dv if dv.dtype == dtype and HV == H else new(total, H, D), z, z[slots * score_heads * CHUNK * CHUNK :],
        new(CHUNK, CHUNK), q.new_empty((slots, H, 4, CHUNK), dtype=torch.float32), *rests,
    )  # fmt: skip


def walk(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dh0, work, cut, slots, terms, states, gates, norm,
    common,
):  # fmt: skip
    """What precedes the walks, and the walks. Returns what the second leaves in float32."""
    (total, HQ, D), (num_seqs, H), HV = q.shape, dh0.shape[:2], v.shape[1]
    (warps, BK, BD), has_rest = cut.prepare, work.rest_of_r is not None
    if total:
        prepare_kernel[(slots * H,)](
            q, k, v, g, beta, do, cu_seqlens, work.ends, work.r, work.of_scores, work.x, work.decay, work.later, scale,
            num_seqs, total, HQ=HQ, HV=HV, TERMS=terms, BK=BK, BD=BD, num_warps=warps, **gates, **norm,
            **common,
        )  # fmt: skip
        warps, BV, stages = cut.forward
        if has_rest:
            edges_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
                cu_seqlens, total, work.ends, work.r, initial_state, work.of_scores, work.x, dht, H=H, D=D, C=CHUNK,
                OPERAND=common["OPERAND"], BK=padded(D), BV=BV, num_warps=warps, **states,
            )  # fmt: skip
        forward_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
            k, cu_seqlens, total, work.ends, work.r, work.decay, initial_state, work.starts, work.rest_of_r,
            HAS_INITIAL=states["HAS_INITIAL"], HAS_REST=has_rest, K_FIRST=states["K_FIRST"], BK=padded(D), BV=BV,
            STAGES=stages, num_warps=warps, **common,
        )  # fmt: skip
    warps, BV, stages = cut.backward
    slices = triton.cdiv(D, BV)
    of_walk = q.new_empty((slots, H, slices, CHUNK + 1), dtype=torch.float32)
    backward_kernel[(num_seqs * H * slices,)](
        q, k, do, cu_seqlens, total, work.r, work.of_scores, work.x, work.decay, work.starts, dht, work.ends, dh0,
        of_walk, work.rest_of_x, scale,
        HQ=HQ, HAS_DHT=states["HAS_DHT"], HAS_REST=has_rest, K_FIRST=states["K_FIRST"], BK=padded(D), BV=BV,
        STAGES=stages, num_warps=warps, **norm, **common,
    )  # fmt: skip
    return of_walk


def backward(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, gate, k_first, strict,
    rstd_q=None,
):  # fmt: skip
    """rstd_q [total, HQ]: factors of the queries; dq is then that of a query with its factor held."""
    (total, HQ, D), (num_seqs, H), HK, HV = q.shape, dh0.shape[:2], k.shape[1], v.shape[1]
    scale = D**-0.5 if scale is None else float(scale)
    if do is None:
        do = q.new_zeros((total, H, D))

    # bfloat16 is multiplied as it is. Anything else is widened, and multiplied as float32; so is all if it is `strict`.
    bf16 = q.dtype == torch.bfloat16 and not strict
    operand, terms, precision = (torch.bfloat16, 2, "tf32") if bf16 else (torch.float32, 1, "ieee")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    cut, slots = blocking(D, operand), triton.cdiv(total, CHUNK) + num_seqs - 1
    common = {"HK": HK, "H": H, "D": D, "C": CHUNK, "OPERAND": tl.bfloat16 if bf16 else tl.float32}
    common["PRECISION"] = precision
    gates = {"GATE": "none" if g is None else gate, "HAS_BETA": beta is not None}
    norm = {"norm_ptr": rstd_q, "NORMED": rstd_q is not None}
    states = {"HAS_INITIAL": initial_state is not None, "HAS_DHT": dht is not None, "K_FIRST": k_first}
    has_rest = bf16 and (initial_state is not None or dht is not None)
    work = workspace(q, k, dv, dh0, slots, operand, has_rest)
    of_walk = walk(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dh0, work, cut, slots, terms, states, gates,
        norm, common,
    )  # fmt: skip
    if not total:
        return
    warps, BD, stages = cut.within
    within_kernel[(slots * HK,)](
        q, k, g, beta, do, cu_seqlens, work.r, work.rest_of_r, work.x, work.rest_of_x, work.later, work.of_scores,
        work.of_keys, dv, dg, dbeta, scale, num_seqs, total,
        HQ=HQ, HV=HV, TERMS=terms, BD=BD, IN_DV=work.x is dv, HAS_REST=has_rest, STAGES=stages, num_warps=warps,
        **gates, **norm, **common,
    )  # fmt: skip
    warps, BK, BV, stages = cut.beside
    slices = triton.cdiv(D, BK)
    beside = q.new_empty((slots, H, slices, 2 * CHUNK), dtype=torch.float32)
    beside_kernel[(slots * HK * slices,)](
        q, k, do, cu_seqlens, initial_state, dht, work.r, work.rest_of_r, work.x, work.rest_of_x, work.starts,
        work.ends, work.decay, work.of_scores, work.of_keys, dq, dk, beside, scale, num_seqs, total,
        HQ=HQ, BK=BK, BV=BV, STAGES=stages, num_warps=warps, **states, **norm, **common,
    )  # fmt: skip
    warps, BD = cut.gates
    gates_kernel[(slots * H,)](
        q, k, g, beta, do, cu_seqlens, initial_state, work.r, work.x, work.ends, of_walk, beside, dg, dbeta, scale,
        num_seqs, total, HQ=HQ, HAS_INITIAL=states["HAS_INITIAL"], K_FIRST=k_first, BD=BD,
        VALUE_SLICES=of_walk.shape[2], KEY_SLICES=slices, num_warps=warps, **gates, **common,
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
