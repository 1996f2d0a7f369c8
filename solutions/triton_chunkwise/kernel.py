"""Gated delta rule over whole sequences, in chunks of 64 tokens, in Triton: two kernels.

One chunk of one head; rows are tokens; S [V, K] is the state at its start; gamma_i = alpha_1 .. alpha_i, and
Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0. What the tokens write, U [C, V], solves a triangular system:

    A = strict_lower(diag(beta) (Gamma * K K^T))        T = (I + A)^-1 diag(beta)
    U = T (V - diag(gamma) K S^T)
    O = scale (diag(gamma) Q S^T + P U)                 P = Gamma * Q K^T
    S <- gamma_C S + U^T diag(Gamma_C,:) K

U is taken apart, so that nothing but S is waited for:

    U = u - w S^T                                       u = T V,  w = T diag(gamma) K

prepare_kernel makes u, w, P and the decays of all chunks at once; chain_kernel walks the chunks of a sequence with a
slice of the value channels of S in registers, and writes S where a checkpoint is due. Value channels never mix, so
slices share nothing.
"""

import os

import torch
import triton
import triton.language as tl

CHUNK = 64
BLOCK = 16  # the inverse begins with diagonal blocks of this size

# cu_seqlens holds values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def blocking(head_size: int, pairs: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """(num_warps of prepare_kernel; BV, num_warps and num_stages of chain_kernel) for operands of `dtype` and so many
    (sequence, head) pairs: the one place to tune."""
    BK = triton.next_power_of_2(head_size)
    if INTERPRETED:
        return 4, BK, 4, 1  # it charges by the program
    if dtype == torch.float32:  # not tuned: it fits into shared memory, and spills
        return (8, min(32, BK), 8, 2) if BK <= 128 else (8, 16, 8, 1)
    if BK > 128:
        return 4, 32, 8, 2
    # Narrow slices where there are few pairs: the chain is serial, and whatever runs beside it is free.
    return 4, min(64 if pairs * triton.cdiv(head_size, 64) >= 128 else 32, BK), 4, 3


# --- where chunks lie -----------------------------------------------------------------------------------------------
#
# Chunk c of sequence n has slot cu_seqlens[n] // CHUNK + n + c in the workspace. No two chunks share one, all are below
# total_seq_len // CHUNK + num_seqs, and nobody has to count the chunks of the sequences before, or wait for the host.


@triton.jit
def slot_of(cu_seqlens_ptr, n, C: tl.constexpr):
    """The slot of the first chunk of sequence n."""
    return tl.load(cu_seqlens_ptr + n).to(tl.int64) // C + n


@triton.jit
def sequence_of(cu_seqlens_ptr, slot, num_seqs, C: tl.constexpr):
    """The last sequence whose first slot is not beyond `slot`: a search, for first slots rise from one to the next."""
    low, high = num_seqs * 0, num_seqs  # first slot of low <= slot < first slot of high
    while high - low > 1:
        middle = (low + high) // 2
        if slot_of(cu_seqlens_ptr, middle, C) <= slot:
            low = middle
        else:
            high = middle
    return low


# --- before the state is known --------------------------------------------------------------------------------------


@triton.jit
def log_decay(g_ptr, at, inside, GATE: tl.constexpr, C: tl.constexpr):
    """Sums of log alpha from the chunk's start, and the number of resets (alpha = 0) so far: both [C].

    A reset stays out of the sums, which so remain finite, and is counted instead: alpha_{j+1} .. alpha_i is 0 where the
    count differs, and exp(sum_i - sum_j) where it does not.
    """
    if GATE == "linear":
        x = tl.log(tl.load(g_ptr + at, mask=inside, other=1.0))
    elif GATE == "log":
        x = tl.load(g_ptr + at, mask=inside, other=0.0)
    else:
        x = tl.zeros([C], dtype=tl.float32)
    reset = x < -104.0  # its exponential is 0 in float32; a larger number would drown its neighbours in the sums
    return tl.cumsum(tl.where(reset, 0.0, x), axis=0), tl.cumsum(reset.to(tl.int32), axis=0)


@triton.jit
def merge(X, A, i, j, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of the diagonal blocks of SIZE rows of I + A to those of 2 SIZE rows, for

    [[X1^-1, 0], [L, X2^-1]]^-1 = [[X1, 0], [-X2 L X1, X2]].
    """
    L = tl.where((i // SIZE == j // SIZE + 1) & (i // SIZE % 2 == 1), A, 0.0)
    return X - tl.dot(tl.dot(X, L, input_precision=PRECISION), X, input_precision=PRECISION)


@triton.jit
def unit_lower_inverse(A, C: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular A [C, C], in float32.

    What is multiplied are parts of A and of the inverse, never powers of A: those grow like binomials where keys
    repeat, and cancel.
    """
    N: tl.constexpr = C // B
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    diagonal = i // B == j // B

    # The diagonal blocks, [N, B, B]: from blocks of one row, whose inverses are ones, to blocks of B.
    blocks = tl.sum(tl.reshape(tl.where(diagonal, A, 0.0), [N, B, N, B]), axis=2)
    r, c = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    X = tl.where(r == c, 1.0, 0.0) - tl.where((r == c + 1) & (r % 2 == 1), blocks, 0.0)
    X = merge(X, blocks, r, c, 2, "ieee")
    X = merge(X, blocks, r, c, 4, "ieee")
    X = merge(X, blocks, r, c, 8, "ieee")

    # Put back on the diagonal, and merged to the end.
    X = tl.reshape(tl.broadcast_to(X[:, :, None, :], [N, B, N, B]), [C, C])
    X = tl.where(diagonal, X, 0.0)
    X = merge(X, A, i, j, 16, PRECISION)
    return merge(X, A, i, j, 32, PRECISION)


@triton.jit
def product(X, Y, TERMS: tl.constexpr, PRECISION: tl.constexpr):
    """X Y, for X in float32 and Y in the operands' type; X in so many terms of that type."""
    high = X.to(Y.dtype)
    if TERMS == 1:
        return tl.dot(high, Y, input_precision=PRECISION)
    low = tl.dot((X - high.to(tl.float32)).to(Y.dtype), Y)
    return tl.dot(high, Y, acc=low)


@triton.jit
def prepare_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, u_ptr, w_ptr, P_ptr, decay_ptr, num_seqs,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, OPERAND: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, C)
    start = tl.load(cu_seqlens_ptr + n).to(tl.int64) + (slot - slot_of(cu_seqlens_ptr, n, C)) * C
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    if start >= stop:  # a slot that no chunk has
        return

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    t = tl.arange(0, C)
    j = tl.arange(0, BK)
    token = start + t
    row = token < stop
    inside = row[:, None] & (j < D)[None, :]
    K = tl.load(k_ptr + (token * HK + h // (H // HK))[:, None] * D + j[None, :], mask=inside, other=0.0).to(OPERAND)
    Q = tl.load(q_ptr + (token * HQ + h // (H // HQ))[:, None] * D + j[None, :], mask=inside, other=0.0).to(OPERAND)
    beta = tl.where(row, 1.0, 0.0)
    if HAS_BETA:
        beta = tl.load(beta_ptr + token * H + h, mask=row, other=0.0)

    # Decays: gamma from the chunk's start to each token, Gamma between two tokens, and from each token to the end.
    total, resets = log_decay(g_ptr, token * H + h, row, GATE, C)
    gamma = tl.exp(tl.where(resets == 0, total, float("-inf")))
    same_run = (t[:, None] >= t[None, :]) & (resets[:, None] == resets[None, :])
    Gamma = tl.exp(tl.where(same_run, tl.minimum(total[:, None] - total[None, :], 0.0), float("-inf")))
    last_total = tl.sum(tl.where(t == C - 1, total, 0.0), axis=0)
    last_resets = tl.sum(tl.where(t == C - 1, resets, 0), axis=0)
    to_end = tl.exp(tl.where(resets == last_resets, tl.minimum(last_total - total, 0.0), float("-inf")))
    at = slot * H + h
    tl.store(decay_ptr + at * (2 * C) + t, gamma)
    tl.store(decay_ptr + at * (2 * C) + C + t, to_end)

    # P = Gamma * Q K^T
    P = Gamma * tl.dot(Q, tl.trans(K), input_precision=PRECISION)
    square = t[:, None] * C + t[None, :]
    tl.store(P_ptr + at * (C * C) + square, P.to(OPERAND))

    # T = (I + A)^-1 diag(beta)
    A = beta[:, None] * Gamma * tl.dot(K, tl.trans(K), input_precision=PRECISION)
    A = tl.where(t[:, None] > t[None, :], A, 0.0)
    T = unit_lower_inverse(A, C, B, PRECISION) * beta[None, :]

    # u = T V, stored as [V, C], and w = T diag(gamma) K; some channels at a time.
    T_gamma = T * gamma[None, :]
    for first in tl.static_range(0, BK, BD):
        d = first + tl.arange(0, BD)
        d_in = d < D
        inside = row[:, None] & d_in[None, :]
        v_at = (token * HV + h // (H // HV))[:, None] * D + d[None, :]
        V = tl.load(v_ptr + v_at, mask=inside, other=0.0).to(OPERAND)
        u = product(T, V, TERMS, PRECISION)
        u_at = at * (D * C) + d[:, None] * C + t[None, :]
        tl.store(u_ptr + u_at, tl.trans(u.to(u_ptr.dtype.element_ty)), mask=d_in[:, None])
        k_at = (token * HK + h // (H // HK))[:, None] * D + d[None, :]
        K = tl.load(k_ptr + k_at, mask=inside, other=0.0).to(OPERAND)
        w = product(T_gamma, K, TERMS, PRECISION)
        w_at = at * (C * D) + t[:, None] * D + d[None, :]
        tl.store(w_ptr + w_at, w.to(OPERAND), mask=d_in[None, :])


# --- the chain ------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_checkpoints", "every"])
def chain_kernel(
    q_ptr, k_ptr, cu_seqlens_ptr, u_ptr, w_ptr, P_ptr, decay_ptr, initial_ptr, output_ptr, final_ptr, scale,
    starts_ptr, checkpoints_ptr, num_checkpoints, every,
    HQ: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_INITIAL: tl.constexpr,
    HAS_CHECKPOINTS: tl.constexpr, K_FIRST: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (D + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H

    t = tl.arange(0, C)
    j = tl.arange(0, BK)  # key channels
    i = block * BV + tl.arange(0, BV)  # value channels
    j_in, i_in = j < D, i < D
    state_at = j[None, :] * D + i[:, None] if K_FIRST else i[:, None] * D + j[None, :]
    state_at += pair.to(tl.int64) * (D * D)  # states outgrow 32 bits
    state_in = i_in[:, None] & j_in[None, :]
    if HAS_INITIAL:
        S = tl.load(initial_ptr + state_at, mask=state_in, other=0.0)  # [BV, BK]
    else:
        S = tl.zeros([BV, BK], dtype=tl.float32)

    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    slot = slot_of(cu_seqlens_ptr, n, C)
    # An empty sequence makes no turn: its final state is its initial one. Everything is transposed, [BV, ..]: the state
    # stays in registers as the left operand of both products that wait for it.
    for chunk in range(tl.cdiv(stop - start, C).to(tl.int32)):
        token = start + chunk * C + t
        row = token < stop
        inside = row[:, None] & j_in[None, :]
        at = (slot + chunk) * H + h
        w = tl.load(w_ptr + at * (C * D) + t[:, None] * D + j[None, :], mask=j_in[None, :], other=0.0)  # [C, BK]
        u = tl.load(u_ptr + at * (D * C) + i[:, None] * C + t[None, :], mask=i_in[:, None], other=0.0)  # [BV, C]
        K = tl.load(k_ptr + (token * HK + h // (H // HK))[:, None] * D + j[None, :], mask=inside, other=0.0).to(OPERAND)
        Q = tl.load(q_ptr + (token * HQ + h // (H // HQ))[:, None] * D + j[None, :], mask=inside, other=0.0).to(OPERAND)
        P = tl.load(P_ptr + at * (C * C) + t[:, None] * C + t[None, :])  # [C, C]
        gamma = tl.load(decay_ptr + at * (2 * C) + t)
        to_end = tl.load(decay_ptr + at * (2 * C) + C + t)
        gamma_C = tl.load(decay_ptr + at * (2 * C) + C - 1)

        # U^T = u^T - S w^T
        held = S.to(OPERAND)
        U = u.to(tl.float32) - tl.dot(held, tl.trans(w), input_precision=PRECISION)
        # O^T = scale (S Q^T diag(gamma) + U^T P^T), begun while the chunk's first S is at hand
        O = tl.dot(held, tl.trans(Q), input_precision=PRECISION) * gamma[None, :]
        # S <- gamma_C S + U^T diag(Gamma_C,:) K
        S = tl.dot((U * to_end[None, :]).to(OPERAND), K, acc=S * gamma_C, input_precision=PRECISION)
        O = tl.dot(U.to(OPERAND), tl.trans(P), acc=O, input_precision=PRECISION) * scale
        o_at = (token * H + h)[:, None] * D + i[None, :]
        o_in = row[:, None] & i_in[None, :]
        tl.store(output_ptr + o_at, tl.trans(O.to(output_ptr.dtype.element_ty)), mask=o_in)

        if HAS_CHECKPOINTS:  # [V, K], after every so many whole chunks
            due = ((chunk + 1) % every == 0) & (start + chunk * C + C <= stop)
            if due:
                checkpoint = tl.load(starts_ptr + n).to(tl.int64) + (chunk + 1) // every - 1
                there = (checkpoint >= 0) & (checkpoint < num_checkpoints)  # whatever starts_ptr holds
                kept_at = (checkpoint * H + h) * (D * D) + i[:, None] * D + j[None, :]
                tl.store(checkpoints_ptr + kept_at, S, mask=state_in & there)

    tl.store(final_ptr + state_at, S, mask=state_in)


# --- the host -------------------------------------------------------------------------------------------------------


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

    # bfloat16 is multiplied as it is, T as a sum of two; three products of such sums are enough for the merges.
    # Anything else is widened and multiplied as float32.
    bf16 = q.dtype == torch.bfloat16
    operand, terms, precision = (torch.bfloat16, 2, "bf16x3") if bf16 else (torch.float32, 1, "tf32x3")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    BK = triton.next_power_of_2(D)
    common = {
        "HQ": HQ, "HK": HK, "H": H, "D": D, "C": CHUNK, "BK": BK,
        "OPERAND": tl.bfloat16 if bf16 else tl.float32, "PRECISION": precision,
    }  # fmt: skip

    prepare_warps, BV, num_warps, num_stages = blocking(D, num_seqs * H, operand)
    slots = total // CHUNK + num_seqs
    u = q.new_empty((slots, H, D, CHUNK), dtype=operand)
    w = q.new_empty((slots, H, CHUNK, D), dtype=operand)
    P = q.new_empty((slots, H, CHUNK, CHUNK), dtype=operand)
    decay = q.new_empty((slots, H, 2, CHUNK), dtype=torch.float32)
    if total:
        prepare_kernel[(slots * H,)](
            q, k, v, g, beta, cu_seqlens, u, w, P, decay, num_seqs,
            HV=HV, GATE="none" if g is None else gate, HAS_BETA=beta is not None, TERMS=terms,
            B=BLOCK, BD=BK if INTERPRETED else min(BK, 64), num_warps=prepare_warps, **common,
        )  # fmt: skip
    chain_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
        q, k, cu_seqlens, u, w, P, decay, initial_state, output, final_state,
        D**-0.5 if scale is None else float(scale),
        starts, checkpoints, len(checkpoints) if kept else None, interval // CHUNK if kept else None,
        HAS_INITIAL=initial_state is not None, HAS_CHECKPOINTS=kept is not None, K_FIRST=k_first, BV=BV,
        num_warps=num_warps, num_stages=num_stages, **common,
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


def check(q, k, v, g, beta, cu_seqlens, initial_state, output, final_state):
    for name, x in (("q", q), ("k", k), ("v", v), ("output", output)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"q is {q.dtype}; bfloat16, float16 and float32 are served")
    total, HQ, D = q.shape
    HK, HV = k.shape[1], v.shape[1]
    H = max(HQ, HV)
    if min(HQ, HK, HV) == 0 or not ((HK == HV and HQ % HK == 0) or (HQ == HK and HV % HQ == 0)):
        raise ValueError(f"{HQ} query, {HK} key and {HV} value heads are neither GQA nor GVA")
    if not 1 <= D <= 256:
        raise ValueError(f"head_size {D} is not served: 1 to 256 are")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() == 0:
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, not [num_seqs + 1]")
    N = cu_seqlens.numel() - 1
    f32 = (torch.float32,)
    require("q", q, q, (q.dtype,), (total, HQ, D))
    require("k", k, q, (q.dtype,), (total, HK, D))
    require("v", v, q, (q.dtype,), (total, HV, D))
    require("g", g, q, f32, (total, H))
    require("beta", beta, q, f32, (total, H))
    require("cu_seqlens", cu_seqlens, q, (torch.int64, torch.int32), (N + 1,))
    require("initial_state", initial_state, q, f32, (N, H, D, D))
    require("output", output, q, (q.dtype,), (total, H, D))
    require("final_state", final_state, q, f32, (N, H, D, D))
    if DEBUG:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != total or bounds != sorted(bounds):
            raise ValueError(f"cu_seqlens must rise from 0 to total_seq_len {total}; it is {bounds}")


def check_checkpoints(starts, interval, checkpoints, cu_seqlens, final_state):
    for name, x, dimensions in (("checkpoint_cu_starts", starts, 1), ("checkpoints", checkpoints, 4)):
        if x.ndim != dimensions:
            raise ValueError(f"{name} has {x.ndim} dimensions, not {dimensions}")
    if not isinstance(interval, int) or interval <= 0 or interval % CHUNK:  # a tensor would be waited for
        raise ValueError(f"checkpoint_interval is {interval!r}, not a positive multiple of {CHUNK}")
    rows = checkpoints.shape[0]
    require("checkpoint_cu_starts", starts, final_state, (torch.int64, torch.int32), tuple(cu_seqlens.shape))
    require("checkpoints", checkpoints, final_state, (torch.float32,), (rows, *final_state.shape[1:]))
    if DEBUG:
        wanted, bounds = [0], cu_seqlens.tolist()
        for n in range(len(bounds) - 1):
            wanted.append(wanted[n] + (bounds[n + 1] - bounds[n]) // interval)
        if starts.tolist() != wanted or wanted[-1] != rows:
            raise ValueError(
                f"checkpoint_cu_starts must be {wanted} with an interval of {interval}, and checkpoints have "
                f"{wanted[-1]} rows; they are {starts.tolist()}, and {rows} rows"
            )


def require(name, x, like, dtypes, shape):
    """x, where it is given: of one of these types, of this shape, contiguous, and where `like` is."""
    if x is None:
        return
    if x.dtype not in dtypes:
        raise ValueError(f"{name} is {x.dtype}, not {' or '.join(map(str, dtypes))}")
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not {shape}")
    if not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device}, not on {like.device}")
