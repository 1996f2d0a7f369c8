"""dq, dk and dg of all chunks at once.

A program has a chunk, a key head and a slice of the key channels, which share nothing but the scores, and takes the
value heads that share the key head in turn: so dq and dk are sums in one order, and are rounded once. queries_kernel
has dq, and the part of dg that queries have; keys_kernel has dk, and adds the part of keys and states to dg.

Between two tokens of a chunk the later one has a factor e, the earlier one f, and e f = Gamma_ij:

    dQ_i = sum_j dP_ij Gamma_ij * k_j = e_i * (dP (f * K))_i
    dK_i = e_i * (B (f * K))_i + f_i * (dP^T (e * Q) + B^T (e * K))_i

In channels that last e = gamma and f = 1 / gamma. A sum over gates then has what a token has as the later one, less
what it has as the earlier one: what cancels is the same product of the same rounded operands. Of other channels
between_kernel (back_between.py) has made all of this.
"""

import triton
import triton.language as tl
from back_prepare import write_gates
from back_within import operand
from borders import LASTING, added, row_at, rows_at
from chunks import known_tokens, start_of
from low import low_of
from prepare import ask_for


@triton.jit
def store_rows(x_ptr, x, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr):
    at = x_ptr + t[:, None] * STRIDE + d[None, :]
    tl.store(at, x.to(x_ptr.dtype.element_ty), mask=row[:, None] & (d < D)[None, :])


@triton.jit
def where_written(dg, K, own_ptr, ones_ptr, t, C: tl.constexpr):
    """dg, and exactly 0 for gates that nothing crosses: where no token before wrote to the channel. Differences leave
    what does not cancel there."""
    wrote = tl.load(own_ptr + C + t)[:, None] > 0.0
    before = tl.load(ones_ptr + C * C + t[:, None] * C + t[None, :])
    return tl.where(tl.dot(before, ((K != 0.0) & wrote).to(tl.bfloat16)) > 0.0, dg, 0.0)


@triton.jit
def queries_by_quotients(
    q_ptr, k_ptr, P_ptr, sums_ptr, own_ptr, ones_ptr, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr
):
    """What dQ and dg [C, BD] have from tokens of the same chunk, of channels that last."""
    C: tl.constexpr = t.shape[0]
    square = t[:, None] * C + t[None, :]
    G, K = rows_at(sums_ptr, t, d, row, D, D), rows_at(k_ptr, t, d, row, STRIDE, D)
    P = tl.load(P_ptr + square, mask=row[:, None] & (t >= 0)[None, :], other=0.0)
    y = tl.dot(P, (K * tl.exp2(-G)).to(tl.bfloat16))
    gamma = tl.exp2(G)
    Q = (rows_at(q_ptr, t, d, row, STRIDE, D) * gamma).to(tl.bfloat16).to(tl.float32)
    dg = added(tl.zeros(y.shape, dtype=tl.float32), tl.load(ones_ptr + square), Q * y)
    return y * gamma, where_written(dg, K, own_ptr, ones_ptr, t, C)


@triton.jit
def zeros_behind(
    cu_seqlens_ptr, x_ptr, y_ptr, slot, head, t, d, num_seqs, total, HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr
):
    """In x of a key head and in y of its value heads: rows behind the last sequence belong to none."""
    behind = slot * t.shape[0] + t
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros = tl.zeros([t.shape[0], d.shape[0]], dtype=tl.float32)
        store_rows(x_ptr + (slot * t.shape[0] * HQ + head) * D, zeros, t, d, none, HQ * D, D)
        for h in range(head * (H // HQ), (head + 1) * (H // HQ)):
            store_rows(y_ptr + (slot * t.shape[0] * H + h) * D, zeros, t, d, none, H * D, D)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def queries_kernel(
    q_ptr, k_ptr, do_ptr, cu_seqlens_ptr, chunks_ptr, starts_ptr, sums_ptr, P_ptr, own_ptr, ones_ptr, dq_part_ptr,
    dq_ptr, dg_ptr, scale, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = H // HQ
    LINES: tl.constexpr = 2 if D <= 64 else 4 if D <= 128 else 8  # of 32 elements
    SLICES: tl.constexpr = (D + BD - 1) // BD
    part, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    head, slot = pair % HQ, (pair // HQ).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    t, d = tl.arange(0, C), part * BD + tl.arange(0, BD)
    zeros_behind(cu_seqlens_ptr, dq_ptr, dg_ptr, slot, head, t, d, num_seqs, total, HQ, H, D)
    if count <= 0:  # a slot that no chunk has
        return
    q_ptr += (first * HQ + head) * D
    k_ptr += (first * HQ + head) * D
    row = t < count

    dQ = tl.zeros([C, BD], dtype=tl.float32)
    for turn in range(GROUP):
        h = head * GROUP + turn
        at = slot * H + h
        dg_at, sums, own = dg_ptr + (first * H + h) * D, sums_ptr + at * (C * D), own_ptr + at * (2 * C)
        if AHEAD:
            there, channels = tl.minimum(t, count - 1), tl.minimum(d, D - 1)
            ask_for(do_ptr + (first * H + h) * D, there, H * D, D, LINES)
            ask_for(starts_ptr + at * (D * D), channels, D, D, LINES)
            ask_for(sums + part * BD, there, D, BD, BD // 32)
            ask_for(dq_part_ptr + at * (C * D) + part * BD, there, D, BD, BD // 32)
            ask_for(dg_at + part * BD, there, H * D, BD, BD // 32)
            ask_for(k_ptr + part * BD, there, HQ * D, BD, BD // 32)
            ask_for(q_ptr + part * BD, there, HQ * D, BD, BD // 32)
        if tl.min(row_at(sums, C - 1, d, D), axis=0) >= LASTING:
            y, dg = queries_by_quotients(
                q_ptr, k_ptr, P_ptr + at * (C * C), sums, own, ones_ptr, t, d, row, HQ * D, D
            )  # fmt: skip
        else:
            y = rows_at(dq_part_ptr + at * (C * D), t, d, row, D, D)
            dg = rows_at(dg_at, t, d, row, H * D, D)
        y += tl.load(own + t)[:, None] * rows_at(k_ptr, t, d, row, HQ * D, D)
        X = of_states(
            do_ptr + (first * H + h) * D, starts_ptr + at * (D * D), t, d, row, H * D, D, BV, STAGES
        )  # fmt: skip
        X *= scale * tl.exp2(rows_at(sums, t, d, row, D, D))
        dQ += y + X
        X *= rows_at(q_ptr, t, d, row, HQ * D, D)
        dg = added(dg, tl.load(ones_ptr + t[:, None] * C + t[None, :]), X)
        store_rows(dg_at, dg, t, d, row, H * D, D)
    store_rows(dq_ptr + (first * HQ + head) * D, dQ, t, d, row, HQ * D, D)


@triton.jit
def keys_by_quotients(
    q_ptr, k_ptr, P_ptr, B_ptr, sums_ptr, own_ptr, ones_ptr, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr
):
    """What dK and dg [C, BD] have from tokens of the same chunk, of channels that last."""
    C: tl.constexpr = t.shape[0]
    i, j = t[:, None], t[None, :]
    G, K = rows_at(sums_ptr, t, d, row, D, D), rows_at(k_ptr, t, d, row, STRIDE, D)
    here = row[:, None]
    z = tl.dot(tl.trans(tl.load(B_ptr + i * C + j, mask=(i > j) & here, other=0.0)), (K * tl.exp2(G)).to(tl.bfloat16))
    Q = (rows_at(q_ptr, t, d, row, STRIDE, D) * tl.exp2(G)).to(tl.bfloat16)
    z = tl.dot(tl.trans(tl.load(P_ptr + i * C + j, mask=(i >= j) & here, other=0.0)), Q, acc=z)
    tl.debug_barrier()
    G, K = rows_at(sums_ptr, t, d, row, D, D), rows_at(k_ptr, t, d, row, STRIDE, D)
    dK = z * tl.exp2(-G)
    back = (K * tl.exp2(-G)).to(tl.bfloat16)
    dg = back.to(tl.float32) * -z
    y = tl.dot(tl.load(B_ptr + i * C + j, mask=(i > j) & here, other=0.0), back)
    tl.debug_barrier()
    G, K = rows_at(sums_ptr, t, d, row, D, D), rows_at(k_ptr, t, d, row, STRIDE, D)
    dK += y * tl.exp2(G)
    dg += (K * tl.exp2(G)).to(tl.bfloat16).to(tl.float32) * y
    tl.debug_barrier()
    dg = added(tl.zeros(y.shape, dtype=tl.float32), tl.load(ones_ptr + i * C + j), dg)
    return dK, where_written(dg, rows_at(k_ptr, t, d, row, STRIDE, D), own_ptr, ones_ptr, t, C)


@triton.jit
def of_states(
    x_ptr, states_ptr, t, d, row, STRIDE: tl.constexpr, D: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr
):
    """x S [C, BD], for rows of values x and a state of this head, in [K, V]."""
    X = tl.zeros([t.shape[0], d.shape[0]], dtype=tl.float32)
    for v_first in tl.range(0, D, BV, num_stages=STAGES):
        v = v_first + tl.arange(0, BV)
        there = (d < D)[:, None] & (v < D)[None, :]
        S = tl.load(states_ptr + d[:, None] * D + v[None, :], mask=there, other=0.0)
        X = tl.dot(operand(x_ptr, t, v, row, STRIDE, D), tl.trans(S), acc=X)
    return X


@triton.jit
def product_of_states(
    starts_ptr, ends_ptr, start_low_ptr, end_low_ptr, d, D: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr
):
    """The sum over value channels of S * dS [BD], a product's diagonal; without what both lose in bfloat16."""
    Z = tl.zeros([d.shape[0], d.shape[0]], dtype=tl.float32)
    for v_first in tl.range(0, D, BV, num_stages=STAGES):
        v = v_first + tl.arange(0, BV)
        at, there = d[:, None] * D + v[None, :], (d < D)[:, None] & (v < D)[None, :]
        S, dS = tl.load(starts_ptr + at, mask=there, other=0.0), tl.load(ends_ptr + at, mask=there, other=0.0)
        Z = tl.dot(S, tl.trans(dS), acc=Z)
        Z = tl.dot(S, tl.trans(low_of(dS, tl.load(end_low_ptr + at, mask=there, other=0))), acc=Z)
        Z = tl.dot(dS, tl.trans(low_of(S, tl.load(start_low_ptr + at, mask=there, other=0))), acc=Z)
    return tl.sum(tl.where(d[:, None] == d[None, :], Z, 0.0), axis=0)


@triton.jit(do_not_specialize=["num_seqs", "total"])
def keys_kernel(
    q_ptr, k_ptr, beta_ptr, cu_seqlens_ptr, chunks_ptr, r_ptr, dv_ptr, starts_ptr, ends_ptr, start_low_ptr, end_low_ptr,
    sums_ptr, P_ptr, B_ptr, own_ptr, ones_ptr, dk_part_ptr, dk_ptr, dv_out_ptr, dg_ptr, num_seqs, total,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HAS_BETA: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = H // HQ
    LINES: tl.constexpr = 2 if D <= 64 else 4 if D <= 128 else 8  # of 32 elements
    SLICES: tl.constexpr = (D + BD - 1) // BD
    part, pair = tl.program_id(0) % SLICES, tl.program_id(0) // SLICES
    head, slot = pair % HQ, (pair // HQ).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    t, d = tl.arange(0, C), part * BD + tl.arange(0, BD)
    zeros_behind(cu_seqlens_ptr, dk_ptr, dv_out_ptr, slot, head, t, d, num_seqs, total, HQ, H, D)
    if count <= 0:  # a slot that no chunk has
        return
    q_ptr += (first * HQ + head) * D
    k_ptr += (first * HQ + head) * D
    row, square = t < count, t[:, None] * C + t[None, :]

    dK = tl.zeros([C, BD], dtype=tl.float32)
    for turn in range(GROUP):
        h = head * GROUP + turn
        at, rows = slot * H + h, (first * H + h) * D
        sums, own, states, scores = sums_ptr + at * (C * D), own_ptr + at * (2 * C), at * (D * D), at * (C * C)
        if AHEAD:
            there, channels = tl.minimum(t, count - 1), tl.minimum(d, D - 1)
            ask_for(starts_ptr + states, channels, D, D, LINES)
            ask_for(dv_ptr + rows, there, H * D, D, LINES)
            ask_for(dk_part_ptr + at * (C * D) + part * BD, there, D, BD, BD // 32)
            ask_for(sums + part * BD, there, D, BD, BD // 32)
            ask_for(k_ptr + part * BD, there, HQ * D, BD, BD // 32)
            ask_for(ends_ptr + states, channels, D, D, LINES)
            ask_for(r_ptr + rows, there, H * D, D, LINES)
            ask_for(end_low_ptr + states, channels, D, D, LINES)
            ask_for(start_low_ptr + states, channels, D, D, LINES)
            ask_for(q_ptr + part * BD, there, HQ * D, BD, BD // 32)
            ask_for(dg_ptr + rows + part * BD, there, H * D, BD, BD // 32)
        dg_at, last = dg_ptr + rows, row_at(sums, C - 1, d, D)
        if tl.min(last, axis=0) >= LASTING:
            y, dg = keys_by_quotients(
                q_ptr, k_ptr, P_ptr + scores, B_ptr + scores, sums, own, ones_ptr, t, d, row, HQ * D, D
            )  # fmt: skip
        else:
            y = rows_at(dk_part_ptr + at * (C * D), t, d, row, D, D)
            dg = tl.zeros([C, BD], dtype=tl.float32)

        tl.debug_barrier()
        X = of_states(dv_ptr + rows, starts_ptr + states, t, d, row, H * D, D, BV, STAGES)
        tl.debug_barrier()
        X *= -tl.exp2(rows_at(sums, t, d, row, D, D))
        y += X
        X *= rows_at(k_ptr, t, d, row, HQ * D, D)
        dg = added(dg, tl.load(ones_ptr + square), X)
        tl.debug_barrier()
        beta, _ = write_gates(beta_ptr, first * H + h + t * H, row, HAS_BETA)
        X = of_states(r_ptr + rows, ends_ptr + states, t, d, row, H * D, D, BV, STAGES)
        X *= tl.exp2(tl.minimum(last[None, :] - rows_at(sums, t, d, row, D, D), 0.0)) * beta[:, None]
        dK += y + X
        X *= rows_at(k_ptr, t, d, row, HQ * D, D)
        dg = added(dg, tl.load(ones_ptr + C * C + square), X)
        tl.debug_barrier()
        through = product_of_states(
            starts_ptr + states, ends_ptr + states, start_low_ptr + states, end_low_ptr + states, d, D, BV, STAGES
        )  # fmt: skip
        dK += tl.load(own + t)[:, None] * rows_at(q_ptr, t, d, row, HQ * D, D)
        dg += rows_at(dg_at, t, d, row, H * D, D) + (tl.exp2(last) * through)[None, :]
        store_rows(dg_at, dg, t, d, row, H * D, D)
    store_rows(dk_ptr + (first * HQ + head) * D, dK, t, d, row, HQ * D, D)
