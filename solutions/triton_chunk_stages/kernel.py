"""The stages of the chunkwise gated delta rule in Triton, a kernel each, in chunks of 64 tokens.

One chunk of one head; rows are tokens; S [V, K] is the state at its start; gamma_i = alpha_1 .. alpha_i, and
Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0.

    wy       T = (I + A)^-1 diag(beta), A = strict_lower(diag(beta) (Gamma * K K^T)); u = T V, w = T diag(gamma) K
    state    U = u - w S^T;   S <- gamma_C S + U^T diag(Gamma_C,:) K
    output   O = scale (diag(gamma) Q S^T + (Gamma * Q K^T) U)

Programs of wy and output own a chunk of a head, those of state a slice of the value channels of a head, which they walk
from chunk to chunk. Operands are bfloat16, T among them as a sum of two; sums are float32.
"""

import os
from itertools import pairwise

import torch
import triton
import triton.language as tl

CHUNK = 64
BLOCK = 16  # the inverse begins with diagonal blocks of this size
LARGEST = 256  # elements of a head

# Bounds are values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def blocking(keys: int, values: int, pairs: int) -> tuple[int, int, int]:
    """(value channels of a program of the state and of the output, num_warps) for so many (sequence, head) pairs: the
    one place to tune."""
    BV = triton.next_power_of_2(values)
    if INTERPRETED:
        return BV, BV, 4  # it charges by the program
    narrow = keys > 128 or pairs * triton.cdiv(values, 64) < 128
    return min(32 if narrow else 64, BV), min(64, BV), 8 if keys > 128 else 4


# --- where chunks lie -----------------------------------------------------------------------------------------------


@triton.jit
def slot_of(cu_seqlens_ptr, n, C: tl.constexpr):
    """A number for the first chunk of sequence n: no two chunks share one, and nobody counts those before."""
    return tl.load(cu_seqlens_ptr + n).to(tl.int64) // C + n


@triton.jit
def chunks_before(slot, cu_seqlens_ptr, n, C: tl.constexpr):
    """How many chunks of sequence n come before the one in this slot. Subtracted in 32 bits: with 64 ptxas 12.8 loses
    the carry into the upper half where a program's number is divided by 6 on the way (3 heads, 2 slices of values), and
    a start lies 2^38 tokens too early."""
    return (slot - slot_of(cu_seqlens_ptr, n, C)).to(tl.int32).to(tl.int64)


@triton.jit
def sequence_of(cu_seqlens_ptr, slot, num_seqs, C: tl.constexpr):
    """The last sequence whose first slot is not beyond this one."""
    low, high = num_seqs * 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if slot_of(cu_seqlens_ptr, middle, C) <= slot:
            low = middle
        else:
            high = middle
    return low


# --- decays ---------------------------------------------------------------------------------------------------------


@triton.jit
def sums(g_ptr, at, inside):
    """Sums of log alpha from the chunk's start, and the number of resets (alpha = 0) so far: both [C].

    A reset stays out of the sums, which so remain finite, and is counted instead: the decay from one token to another
    is 0 where the count differs, and the exponential of the difference of sums where it does not.
    """
    x = tl.load(g_ptr + at, mask=inside, other=0.0)
    reset = x < -104.0  # its exponential is 0 in float32; a larger number would drown its neighbours in the sums
    return tl.cumsum(tl.where(reset, 0.0, x), axis=0), tl.cumsum(reset.to(tl.int32), axis=0)


@triton.jit
def from_start(total, resets):
    """gamma [C]."""
    return tl.exp(tl.where(resets == 0, total, float("-inf")))


@triton.jit
def between(total, resets, t):
    """Gamma [C, C], 0 above the diagonal."""
    same = (t[:, None] >= t[None, :]) & (resets[:, None] == resets[None, :])
    return tl.exp(tl.where(same, tl.minimum(total[:, None] - total[None, :], 0.0), float("-inf")))


# --- u and w --------------------------------------------------------------------------------------------------------


@triton.jit
def merge(X, A, i, j, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """From the inverses of the diagonal blocks of SIZE rows of I + A to those of 2 SIZE rows, for

    [[X1^-1, 0], [L, X2^-1]]^-1 = [[X1, 0], [-X2 L X1, X2]].
    """
    L = tl.where((i // SIZE == j // SIZE + 1) & (i // SIZE % 2 == 1), A, 0.0)
    return X - tl.dot(tl.dot(X, L, input_precision=PRECISION), X, input_precision=PRECISION)


@triton.jit
def unit_lower_inverse(A, C: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular A [C, C]. What is multiplied are parts of A and of the inverse, never
    powers of A: those grow like binomials where keys repeat, and cancel."""
    N: tl.constexpr = C // B
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    diagonal = i // B == j // B
    blocks = tl.sum(tl.reshape(tl.where(diagonal, A, 0.0), [N, B, N, B]), axis=2)  # [N, B, B]
    r, c = tl.arange(0, B)[None, :, None], tl.arange(0, B)[None, None, :]
    X = tl.where(r == c, 1.0, 0.0) - tl.where((r == c + 1) & (r % 2 == 1), blocks, 0.0)
    X = merge(X, blocks, r, c, 2, "ieee")
    X = merge(X, blocks, r, c, 4, "ieee")
    X = merge(X, blocks, r, c, 8, "ieee")
    X = tl.reshape(tl.broadcast_to(X[:, :, None, :], [N, B, N, B]), [C, C])
    X = tl.where(diagonal, X, 0.0)
    X = merge(X, A, i, j, 16, PRECISION)
    return merge(X, A, i, j, 32, PRECISION)


@triton.jit
def product(X, Y):
    """X Y, for X in float32, as a sum of two terms of Y's type."""
    high = X.to(Y.dtype)
    low = tl.dot((X - high.to(tl.float32)).to(Y.dtype), Y)
    return tl.dot(high, Y, acc=low)


@triton.jit
def wy_kernel(
    k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, u_ptr, w_ptr, num_seqs,
    HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, C)
    start = tl.load(cu_seqlens_ptr + n).to(tl.int64) + chunks_before(slot, cu_seqlens_ptr, n, C) * C
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    if start >= stop:  # a slot that no chunk has
        return

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    t, j = tl.arange(0, C), tl.arange(0, BK)
    token = start + t
    row = token < stop
    k_at = k_ptr + (token * HK + h // (H // HK))[:, None] * K
    keys = tl.load(k_at + j[None, :], mask=row[:, None] & (j < K)[None, :], other=0.0)
    beta = tl.load(beta_ptr + token * H + h, mask=row, other=0.0)
    total, resets = sums(g_ptr, token * H + h, row)
    gamma = from_start(total, resets)

    A = beta[:, None] * between(total, resets, t) * tl.dot(keys, tl.trans(keys))
    T = unit_lower_inverse(tl.where(t[:, None] > t[None, :], A, 0.0), C, B, PRECISION) * beta[None, :]
    T_gamma = T * gamma[None, :]
    out = (token * H + h)[:, None]
    for first in tl.static_range(0, BV, BD):  # some channels at a time
        d = first + tl.arange(0, BD)
        inside = row[:, None] & (d < V)[None, :]
        values = tl.load(v_ptr + out * V + d[None, :], mask=inside, other=0.0)
        tl.store(u_ptr + out * V + d[None, :], product(T, values).to(u_ptr.dtype.element_ty), mask=inside)
    for first in tl.static_range(0, BK, BD):
        d = first + tl.arange(0, BD)
        inside = row[:, None] & (d < K)[None, :]
        some = tl.load(k_at + d[None, :], mask=inside, other=0.0)
        tl.store(w_ptr + out * K + d[None, :], product(T_gamma, some).to(w_ptr.dtype.element_ty), mask=inside)


# --- the walk -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_chunks"])
def state_kernel(
    k_ptr, w_ptr, u_ptr, g_ptr, cu_seqlens_ptr, starts_ptr, initial_ptr, states_ptr, u_new_ptr, final_ptr, num_chunks,
    HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HAS_INITIAL: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (V + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    t, j = tl.arange(0, C), tl.arange(0, BK)
    i = block * BV + tl.arange(0, BV)
    j_in, i_in = j < K, i < V
    state_at = i[:, None] * K + j[None, :]
    state_in = i_in[:, None] & j_in[None, :]
    S = tl.zeros([BV, BK], dtype=tl.float32)
    if HAS_INITIAL:
        S = tl.load(initial_ptr + pair.to(tl.int64) * (V * K) + state_at, mask=state_in, other=0.0)

    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    first = tl.load(starts_ptr + n).to(tl.int64)
    # An empty sequence makes no turn. The state stays in registers, the left operand of what waits for it.
    for c in range(tl.cdiv(stop - start, C).to(tl.int32)):
        there = (first + c >= 0) & (first + c < num_chunks)  # whatever starts_ptr holds
        at = ((first + c) * H + h) * (V * K)
        held = S.to(w_ptr.dtype.element_ty)
        tl.store(states_ptr + at + state_at, held, mask=state_in & there)

        token = start + c * C + t
        row = token < stop
        out = token * H + h
        wide = row[:, None] & j_in[None, :]
        keys = tl.load(k_ptr + (token * HK + h // (H // HK))[:, None] * K + j[None, :], mask=wide, other=0.0)
        w = tl.load(w_ptr + out[:, None] * K + j[None, :], mask=wide, other=0.0)
        u_at = out[:, None] * V + i[None, :]
        u_in = row[:, None] & i_in[None, :]
        u = tl.load(u_ptr + u_at, mask=u_in, other=0.0).to(tl.float32)
        total, resets = sums(g_ptr, out, row)
        last = t == C - 1
        end, last_resets = tl.sum(tl.where(last, total, 0.0), axis=0), tl.sum(tl.where(last, resets, 0), axis=0)
        to_end = tl.exp(tl.where(resets == last_resets, tl.minimum(end - total, 0.0), float("-inf")))
        gamma_C = tl.exp(tl.where(last_resets == 0, end, float("-inf")))

        U = tl.trans(u) - tl.dot(held, tl.trans(w))  # [BV, C]
        tl.store(u_new_ptr + u_at, tl.trans(U).to(u_new_ptr.dtype.element_ty), mask=u_in)
        S = tl.dot((U * to_end[None, :]).to(keys.dtype), keys, acc=S * gamma_C)
    tl.store(final_ptr + pair.to(tl.int64) * (V * K) + state_at, S, mask=state_in)


# --- the output -----------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["num_chunks"])
def output_kernel(
    q_ptr, k_ptr, u_ptr, states_ptr, g_ptr, cu_seqlens_ptr, starts_ptr, output_ptr, num_seqs, num_chunks, scale,
    HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (V + BV - 1) // BV
    block, rest = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, slot = rest % H, (rest // H).to(tl.int64)
    n = sequence_of(cu_seqlens_ptr, slot, num_seqs, C)
    c = chunks_before(slot, cu_seqlens_ptr, n, C)
    start = tl.load(cu_seqlens_ptr + n).to(tl.int64) + c * C
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    if start >= stop:  # a slot that no chunk has
        return

    t, j = tl.arange(0, C), tl.arange(0, BK)
    i = block * BV + tl.arange(0, BV)
    token = start + t
    row = token < stop
    wide = row[:, None] & (j < K)[None, :]
    qk_at = (token * HK + h // (H // HK))[:, None] * K + j[None, :]
    queries = tl.load(q_ptr + qk_at, mask=wide, other=0.0)
    keys = tl.load(k_ptr + qk_at, mask=wide, other=0.0)
    out = (token * H + h)[:, None] * V + i[None, :]
    inside = row[:, None] & (i < V)[None, :]
    U = tl.load(u_ptr + out, mask=inside, other=0.0)
    chunk = tl.load(starts_ptr + n).to(tl.int64) + c
    there = (chunk >= 0) & (chunk < num_chunks)  # whatever starts_ptr holds
    state_at = (chunk * H + h) * (V * K) + i[:, None] * K + j[None, :]
    S = tl.load(states_ptr + state_at, mask=(i < V)[:, None] & (j < K)[None, :] & there, other=0.0)

    total, resets = sums(g_ptr, token * H + h, row)
    P = between(total, resets, t) * tl.dot(queries, tl.trans(keys))
    O = tl.dot(queries, tl.trans(S)) * from_start(total, resets)[:, None]
    O = tl.dot(P.to(U.dtype), U, acc=O) * scale
    tl.store(output_ptr + out, O.to(output_ptr.dtype.element_ty), mask=inside)


# --- the host -------------------------------------------------------------------------------------------------------


def require(device, dtype, **tensors):
    for name, (x, shape) in tensors.items():
        if x.dtype != dtype:
            raise ValueError(f"{name} is {x.dtype}, not {dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, not on {device}")


def sizes(k, v, cu_seqlens, name):
    """(sequences, tokens, key heads, heads, K, V) of keys and of what has a value's shape, called `name`."""
    for x, count, what in ((k, 3, "k"), (v, 3, name), (cu_seqlens, 1, "cu_seqlens")):
        if x.ndim != count:
            raise ValueError(f"{what} has {x.ndim} dimensions, not {count}")
    T, HK, K = k.shape
    H, V = v.shape[1:]
    if HK == 0 or H % HK:
        raise ValueError(f"num_k_heads {HK} does not divide num_v_heads {H}")
    if K > LARGEST or V > LARGEST:
        raise ValueError(f"heads of {K} and {V} elements are not served: up to {LARGEST} are")
    N = len(cu_seqlens) - 1
    if N < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    bf16 = torch.bfloat16
    require(k.device, bf16, k=(k, (T, HK, K)), **{name: (v, (T, H, V))})
    require(k.device, torch.int64, cu_seqlens=(cu_seqlens, (N + 1,)))
    if DEBUG:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != T or any(a > b for a, b in pairwise(bounds)):
            raise ValueError(f"cu_seqlens must rise from 0 to {T}, the number of tokens; it is {bounds}")
    return N, T, HK, H, K, V


def check_starts(chunk_cu_starts, cu_seqlens, num_chunks):
    require(cu_seqlens.device, torch.int64, chunk_cu_starts=(chunk_cu_starts, cu_seqlens.shape))
    if DEBUG:
        counts = ((cu_seqlens.diff() + CHUNK - 1) // CHUNK).cumsum(0).tolist()
        if chunk_cu_starts.tolist() != [0, *counts] or num_chunks != counts[-1]:
            raise ValueError(f"chunk_cu_starts must be {[0, *counts]} and end at the number of states, {num_chunks}")


def chunk_wy(k, v, g, beta, cu_seqlens, u, w):
    """gdn_chunk_wy."""
    N, T, HK, H, K, V = sizes(k, v, cu_seqlens, "v")
    require(k.device, torch.float32, g=(g, (T, H)), beta=(beta, (T, H)))
    require(k.device, torch.bfloat16, u=(u, (T, H, V)), w=(w, (T, H, K)))
    # At least 64: of products with 32 columns Triton 3.6 makes wrong ones on sm_90 (triton_chunkwise's README).
    BK, BV = (max(16 if INTERPRETED else 64, triton.next_power_of_2(x)) for x in (K, V))
    precision = "ieee" if INTERPRETED or torch.version.hip else "bf16x3"
    wy_kernel[((T // CHUNK + N) * H,)](
        k, v, g, beta, cu_seqlens, u, w, N,
        HK=HK, H=H, K=K, V=V, PRECISION=precision, C=CHUNK, B=BLOCK, BK=BK, BV=BV,
        BD=max(BK, BV) if INTERPRETED else min(64, BK, BV), num_warps=4,
    )  # fmt: skip


def chunk_state(k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state, states, u_new, final_state):
    """gdn_chunk_state."""
    N, T, HK, H, K, V = sizes(k, u, cu_seqlens, "u")
    require(k.device, torch.float32, g=(g, (T, H)), final_state=(final_state, (N, H, V, K)))
    if initial_state is not None:
        require(k.device, torch.float32, initial_state=(initial_state, (N, H, V, K)))
    chunks = len(states)
    require(k.device, torch.bfloat16, w=(w, (T, H, K)), u_new=(u_new, (T, H, V)), states=(states, (chunks, H, V, K)))
    check_starts(chunk_cu_starts, cu_seqlens, chunks)
    BV, _, num_warps = blocking(K, V, N * H)
    state_kernel[(N * H * triton.cdiv(V, BV),)](
        k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state, states, u_new, final_state, chunks,
        HK=HK, H=H, K=K, V=V, HAS_INITIAL=initial_state is not None,
        C=CHUNK, BK=max(16, triton.next_power_of_2(K)), BV=max(16, BV), num_warps=num_warps,
    )  # fmt: skip


def chunk_output(q, k, u_new, states, g, cu_seqlens, chunk_cu_starts, scale, output):
    """gdn_chunk_output."""
    N, T, HK, H, K, V = sizes(k, u_new, cu_seqlens, "u_new")
    require(k.device, torch.float32, g=(g, (T, H)))
    chunks = len(states)
    require(k.device, torch.bfloat16, q=(q, (T, HK, K)), output=(output, (T, H, V)), states=(states, (chunks, H, V, K)))
    check_starts(chunk_cu_starts, cu_seqlens, chunks)
    _, BV, num_warps = blocking(K, V, N * H)
    output_kernel[((T // CHUNK + N) * H * triton.cdiv(V, BV),)](
        q, k, u_new, states, g, cu_seqlens, chunk_cu_starts, output, N, chunks,
        K**-0.5 if scale is None else float(scale),
        HK=HK, H=H, K=K, V=V, C=CHUNK, BK=max(16, triton.next_power_of_2(K)), BV=max(16, BV), num_warps=num_warps,
    )  # fmt: skip
