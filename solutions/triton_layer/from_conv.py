"""The gated delta rule straight from the convolution's rows, in chunks of 64 tokens: two kernels.

One chunk of one head; rows are tokens; S [V, K] is the state at its start; gamma_i = alpha_1 .. alpha_i, and
Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0. With normalised keys diag(r) K and queries diag(s) Q, the scale in
s, norms are factors of rows: they join the decays, in float32, and what is multiplied is q, k and v as they are stored.

    A = strict_lower(diag(beta) (Gamma * r r^T * K K^T))        T = (I + A)^-1 diag(beta)
    u = T V,  w = T diag(gamma r) K,  P = Gamma * s r^T * Q K^T
    U = u - w S^T
    O = diag(gamma s) Q S^T + P U
    S <- gamma_C S + U^T diag(Gamma_C,: r) K

prepare_kernel makes u, w, P and the factors of rows of all chunks at once; chain_kernel walks the chunks of a sequence
with a slice of the value channels of S in registers, from its slot to its slot.
"""

import functools

import torch
import triton
import triton.language as tl
from checks import (
    DEBUG,
    INTERPRETED,
    check_bounds,
    check_slots,
    require,
    require_dimensions,
    require_float,
    require_pool,
)
from conv1d import block_of, blocks_before, sequence_of

CHUNK = 64
BLOCK = 16  # the inverse begins with diagonal blocks of this size
LARGEST = 256  # elements of a head


def blocking(keys: int, values: int, pairs: int) -> tuple[int, int]:
    """(value channels of a program of the chain, num_warps) for so many (sequence, head) pairs."""
    BV = max(16, triton.next_power_of_2(values))
    if INTERPRETED:
        return BV, 4  # it charges by the program
    narrow = keys > 128 or pairs * triton.cdiv(values, 64) < 128
    return min(32 if narrow else 64, BV), 8 if keys > 128 else 4


@functools.cache
def room(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; of an H100 where kernels are compiled alone."""
    if device.type != "cuda":
        return 227 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def stages(BK: int, BV: int, row_bytes: int, device: torch.device) -> int:
    """num_stages of the chain, so that what it holds has room: all but one of them are chunks on their way, of rows
    with so many bytes an element, and products need up to 77 KiB besides."""
    chunk = CHUNK * (2 * BK * row_bytes + 2 * BK + 4 * BV + 2 * CHUNK)  # q and k, w, u, P
    return max(1, min(3, 1 + (room(device) - 77 * 1024) // chunk))


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
def prepare_kernel(
    qkv_ptr, decay_ptr, beta_ptr, offsets_ptr, u_ptr, w_ptr, P_ptr, factors_ptr, num_seqs,
    HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535. The value heads of one key head run side by side.
    h, slot = tl.program_id(0) % H, (tl.program_id(0) // H).to(tl.int64)
    n = sequence_of(offsets_ptr, slot, num_seqs, C)
    start = tl.load(offsets_ptr + n).to(tl.int64) + blocks_before(slot, offsets_ptr, n, C) * C
    stop = tl.load(offsets_ptr + n + 1).to(tl.int64)
    if start >= stop:  # a slot that no chunk has
        return

    # Rows past the end of the sequence are tokens that do nothing: alpha = 1, beta = 0, and zeros.
    ROW: tl.constexpr = 2 * HK * K + H * V
    t, j = tl.arange(0, C), tl.arange(0, BK)
    token = start + t
    row = token < stop
    q_at = qkv_ptr + token[:, None] * ROW + h // (H // HK) * K
    wide = row[:, None] & (j < K)[None, :]
    queries = tl.load(q_at + j[None, :], mask=wide, other=0.0)
    keys = tl.load(q_at + HK * K + j[None, :], mask=wide, other=0.0)
    q32, k32 = queries.to(tl.float32), keys.to(tl.float32)
    s = SCALE / tl.sqrt(tl.sum(q32 * q32, axis=1) + 1e-6)
    r = 1.0 / tl.sqrt(tl.sum(k32 * k32, axis=1) + 1e-6)
    queries, keys = queries.to(tl.bfloat16), keys.to(tl.bfloat16)
    beta = tl.load(beta_ptr + token * H + h, mask=row, other=0.0)

    # Sums of log alpha with resets (alpha = 0) left out and counted: they remain finite, and a decay is 0 where the
    # count differs.
    log_alpha = tl.log(tl.load(decay_ptr + token * H + h, mask=row, other=1.0))
    reset = log_alpha < -104.0  # its exponential is 0 in float32; a larger number would drown its neighbours
    total = tl.cumsum(tl.where(reset, 0.0, log_alpha), axis=0)
    resets = tl.cumsum(reset.to(tl.int32), axis=0)
    gamma = tl.exp(tl.where(resets == 0, total, float("-inf")))
    same = (t[:, None] >= t[None, :]) & (resets[:, None] == resets[None, :])
    Gamma = tl.exp(tl.where(same, tl.minimum(total[:, None] - total[None, :], 0.0), float("-inf")))
    last = t == C - 1
    end, last_resets = tl.sum(tl.where(last, total, 0.0), axis=0), tl.sum(tl.where(last, resets, 0), axis=0)
    to_end = tl.exp(tl.where(resets == last_resets, tl.minimum(end - total, 0.0), float("-inf")))
    at = slot * H + h
    tl.store(factors_ptr + at * (3 * C) + t, gamma * s)
    tl.store(factors_ptr + at * (3 * C) + C + t, to_end * r)
    tl.store(factors_ptr + at * (3 * C) + 2 * C + t, gamma)

    P = Gamma * (s[:, None] * r[None, :]) * tl.dot(queries, tl.trans(keys))
    square = t[:, None] * C + t[None, :]
    tl.store(P_ptr + at * (C * C) + square, P.to(tl.bfloat16))
    A = beta[:, None] * Gamma * (r[:, None] * r[None, :]) * tl.dot(keys, tl.trans(keys))
    T = unit_lower_inverse(tl.where(t[:, None] > t[None, :], A, 0.0), C, B, PRECISION) * beta[None, :]

    # u is stored as [V, C], for the chain takes it transposed; some channels at a time.
    T_keys = T * (gamma * r)[None, :]
    v_at = qkv_ptr + token[:, None] * ROW + 2 * HK * K + h * V
    for first in tl.static_range(0, BV, BD):
        d = first + tl.arange(0, BD)
        values = tl.load(v_at + d[None, :], mask=row[:, None] & (d < V)[None, :], other=0.0).to(tl.bfloat16)
        u_at = at * (V * C) + d[:, None] * C + t[None, :]
        tl.store(u_ptr + u_at, tl.trans(product(T, values)), mask=(d < V)[:, None])
    for first in tl.static_range(0, BK, BD):
        d = first + tl.arange(0, BD)
        some = tl.load(q_at + HK * K + d[None, :], mask=row[:, None] & (d < K)[None, :], other=0.0).to(tl.bfloat16)
        w_at = at * (C * K) + t[:, None] * K + d[None, :]
        tl.store(w_ptr + w_at, product(T_keys, some).to(tl.bfloat16), mask=(d < K)[None, :])


@triton.jit
def chain_kernel(
    qkv_ptr, offsets_ptr, slots_ptr, flags_ptr, u_ptr, w_ptr, P_ptr, factors_ptr, pool_ptr, output_ptr, num_slots,
    slot_stride, HK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, HAS_FLAGS: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (V + BV - 1) // BV
    block, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    h, n = pair % H, pair // H
    start = tl.load(offsets_ptr + n).to(tl.int64)
    stop = tl.load(offsets_ptr + n + 1).to(tl.int64)
    chunks = tl.cdiv(stop - start, C).to(tl.int32)
    if chunks <= 0:  # an empty sequence: its state stays
        return
    t, j = tl.arange(0, C), tl.arange(0, BK)
    i = block * BV + tl.arange(0, BV)
    j_in, i_in = j < K, i < V
    slot = tl.load(slots_ptr + n).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):  # -1, or a slot that is none: never followed
        for c in range(chunks):
            token = start + c * C + t
            o_at = output_ptr + (token * H + h)[:, None] * V + i[None, :]
            tl.store(o_at, tl.zeros([C, BV], dtype=tl.float32), mask=(token < stop)[:, None] & i_in[None, :])
        return

    ROW: tl.constexpr = 2 * HK * K + H * V
    state_at = pool_ptr + slot * slot_stride + h * (K * V) + j[None, :] * V + i[:, None]
    state_in = i_in[:, None] & j_in[None, :]
    carried = state_in
    if HAS_FLAGS:
        carried = state_in & (tl.load(flags_ptr + n) != 0)
    S = tl.load(state_at, mask=carried, other=0.0).to(tl.float32)  # [BV, BK]
    first = block_of(offsets_ptr, n, C)
    for c in range(chunks):
        token = start + c * C + t
        row = token < stop
        at = (first + c) * H + h
        w = tl.load(w_ptr + at * (C * K) + t[:, None] * K + j[None, :], mask=j_in[None, :], other=0.0)
        u = tl.load(u_ptr + at * (V * C) + i[:, None] * C + t[None, :], mask=i_in[:, None], other=0.0)
        q_at = qkv_ptr + token[:, None] * ROW + h // (H // HK) * K + j[None, :]
        wide = row[:, None] & j_in[None, :]
        queries = tl.load(q_at, mask=wide, other=0.0).to(tl.bfloat16)
        keys = tl.load(q_at + HK * K, mask=wide, other=0.0).to(tl.bfloat16)
        P = tl.load(P_ptr + at * (C * C) + t[:, None] * C + t[None, :])
        of_query = tl.load(factors_ptr + at * (3 * C) + t)
        of_key = tl.load(factors_ptr + at * (3 * C) + C + t)
        gamma_C = tl.load(factors_ptr + at * (3 * C) + 3 * C - 1)

        held = S.to(tl.bfloat16)
        U = u - tl.dot(held, tl.trans(w))  # [BV, C]
        O = tl.dot(held, tl.trans(queries)) * of_query[None, :]
        S = tl.dot((U * of_key[None, :]).to(tl.bfloat16), keys, acc=S * gamma_C)
        O = tl.dot(U.to(tl.bfloat16), tl.trans(P), acc=O)
        o_at = output_ptr + (token * H + h)[:, None] * V + i[None, :]
        tl.store(o_at, tl.trans(O), mask=row[:, None] & i_in[None, :])
    tl.store(state_at, S.to(pool_ptr.dtype.element_ty), mask=state_in)


# --- the host -------------------------------------------------------------------------------------------------------


def prefill_from_conv(qkv, decay, beta, recurrent_state, slots, row_offsets, output, has_initial_state=None):
    """gdn_prefill_from_conv: qkv of bfloat16, float16 or float32; states [slots, H, K, V] of their own such type, zeros
    for a sequence that has_initial_state, where given, says false of."""
    require_dimensions(2, qkv=qkv, decay=decay)
    require_dimensions(1, row_offsets=row_offsets)
    require_dimensions(4, recurrent_state=recurrent_state)
    require_float(qkv=qkv)
    T, num_seqs = len(qkv), len(row_offsets) - 1
    H, K, V = recurrent_state.shape[1:]
    if num_seqs < 1:
        raise ValueError("row_offsets has one entry more than there are sequences, and none is none")
    if not (0 < K <= LARGEST and 0 < V <= LARGEST):
        raise ValueError(f"heads of {K} and {V} elements are not served: 1 to {LARGEST} are")
    HK, rest = divmod(qkv.shape[1] - H * V, 2 * K)
    if rest or HK <= 0 or H % HK:
        raise ValueError(f"rows of {qkv.shape[1]} channels are not q, k and v of {H} value heads of {V}, keys of {K}")
    require_pool(recurrent_state, "recurrent_state", (H, K, V), qkv.device)
    require(qkv.device, qkv.dtype, qkv=(qkv, qkv.shape))
    require(qkv.device, torch.float32, decay=(decay, (T, H)), beta=(beta, (T, H)), output=(output, (T, H * V)))
    require(qkv.device, torch.int32, slots=(slots, (num_seqs,)), row_offsets=(row_offsets, (num_seqs + 1,)))
    flags = has_initial_state
    if flags is not None:
        require(qkv.device, torch.bool, has_initial_state=(flags, (num_seqs,)))
        flags = flags.view(torch.uint8)
    if DEBUG:
        check_slots(slots, len(recurrent_state))
        check_bounds("row_offsets", row_offsets, T)

    spaces = T // CHUNK + num_seqs  # where chunks lie: conv1d.block_of
    u = qkv.new_empty((spaces, H, V, CHUNK), dtype=torch.float32)
    w = qkv.new_empty((spaces, H, CHUNK, K), dtype=torch.bfloat16)
    P = qkv.new_empty((spaces, H, CHUNK, CHUNK), dtype=torch.bfloat16)
    factors = qkv.new_empty((spaces, H, 3, CHUNK), dtype=torch.float32)
    # At least 64: Triton 3.6 makes wrong products of 32 columns on sm_90.
    BK, BV = (max(16 if INTERPRETED else 64, triton.next_power_of_2(x)) for x in (K, V))
    sizes = {"HK": HK, "H": H, "K": K, "V": V, "C": CHUNK, "BK": BK}
    prepare_kernel[(spaces * H,)](
        qkv, decay, beta, row_offsets, u, w, P, factors, num_seqs, **sizes, SCALE=K**-0.5, B=BLOCK, BV=BV,
        PRECISION="ieee" if INTERPRETED or torch.version.hip else "bf16x3",
        BD=max(BK, BV) if INTERPRETED else min(64, BK, BV),
        num_warps=8 if qkv.element_size() == 4 and BK > 128 else 4,
    )  # fmt: skip
    BV, num_warps = blocking(K, V, num_seqs * H)
    chain_kernel[(num_seqs * H * triton.cdiv(V, BV),)](
        qkv, row_offsets, slots, flags, u, w, P, factors, recurrent_state, output, len(recurrent_state),
        recurrent_state.stride(0), **sizes, HAS_FLAGS=flags is not None, BV=BV, num_warps=num_warps,
        num_stages=1 if INTERPRETED else stages(BK, BV, qkv.element_size(), qkv.device),
    )  # fmt: skip
