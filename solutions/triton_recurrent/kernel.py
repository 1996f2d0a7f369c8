"""Gated delta rule, token by token, in Triton: the state stays in registers from the first token to the last.

One program owns a block of BV value channels of one value head of one sequence: its part of the state, S [BV, BK].
Value channels never mix (every row of S sees the same q, k and gates), so programs share nothing and sequences run in
parallel. Arithmetic is float32; outputs are rounded once.

k_last and k_first differ in the strides of the state alone, so one kernel serves both.
"""

import torch
import triton
import triton.language as tl


def blocking(head_size: int, device: str) -> tuple[int, int]:
    """(BV, num_warps). On a GPU a slice of the state that one warp holds in registers, with room for q, k and sums:
    8 x 128 floats are 32 registers a thread, and a single warp reduces over K without shared memory. On a CPU, under
    the interpreter, whose cost is by the program, the whole head."""
    if device == "cpu":
        return triton.next_power_of_2(head_size), 1
    return 8, 1


# --- prefill ----------------------------------------------------------------------------------------------------


@triton.jit
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, cu_seqlens_ptr, initial_ptr, output_ptr, final_ptr, scale,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    GATE: tl.constexpr, HAS_BETA: tl.constexpr, HAS_INITIAL: tl.constexpr, K_FIRST: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535, which ragged batches may pass.
    program = tl.program_id(0)
    blocks = tl.cdiv(D, BV)
    block, row = program % blocks, program // blocks
    h, n = row % H, row // H

    j = tl.arange(0, BK)  # key channels
    i = block * BV + tl.arange(0, BV)  # value channels
    j_in, i_in = j < D, i < D
    inside = i_in[:, None] & j_in[None, :]
    at = j[None, :] * D + i[:, None] if K_FIRST else i[:, None] * D + j[None, :]
    at += row.to(tl.int64) * (D * D)  # states outgrow 32 bits

    if HAS_INITIAL:
        S = tl.load(initial_ptr + at, mask=inside, other=0.0).to(tl.float32)  # [BV, BK]
    else:
        S = tl.zeros([BV, BK], dtype=tl.float32)

    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    stop = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64)
    q_at = q_ptr + (start * HQ + h // (H // HQ)) * D + j
    k_at = k_ptr + (start * HK + h // (H // HK)) * D + j
    v_at = v_ptr + (start * HV + h // (H // HV)) * D + i
    o_at = output_ptr + (start * H + h) * D + i
    gate_at = start * H + h

    # An empty sequence makes no turn: its final state is its initial one.
    for _ in range(start, stop):
        q = tl.load(q_at, mask=j_in, other=0.0).to(tl.float32)
        k = tl.load(k_at, mask=j_in, other=0.0).to(tl.float32)
        u = tl.load(v_at, mask=i_in, other=0.0).to(tl.float32)
        if GATE == "linear":
            S = S * tl.load(g_ptr + gate_at).to(tl.float32)
        if GATE == "log":
            S = S * tl.exp(tl.load(g_ptr + gate_at).to(tl.float32))  # exp(-inf) = 0: an exact reset
        u -= tl.sum(S * k[None, :], axis=1)  # the error, of the decayed state
        if HAS_BETA:
            u *= tl.load(beta_ptr + gate_at).to(tl.float32)
        S += u[:, None] * k[None, :]
        o = tl.sum(S * q[None, :], axis=1) * scale
        tl.store(o_at, o.to(output_ptr.dtype.element_ty), mask=i_in)
        q_at += HQ * D
        k_at += HK * D
        v_at += HV * D
        o_at += H * D
        gate_at += H

    tl.store(final_ptr + at, S.to(final_ptr.dtype.element_ty), mask=inside)


def prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, gate, k_first):
    require_contiguous(
        q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens, initial_state=initial_state,
        output=output, final_state=final_state,
    )  # fmt: skip
    num_seqs, H, D, _ = final_state.shape
    if num_seqs == 0:
        return
    BV, num_warps = blocking(D, q.device.type)
    prefill_kernel[(num_seqs * H * triton.cdiv(D, BV),)](
        q, k, v, g, beta, cu_seqlens, initial_state, output, final_state, default_scale(D, scale),
        HQ=q.shape[1], HK=k.shape[1], HV=v.shape[1], H=H, D=D,
        GATE="none" if g is None else gate, HAS_BETA=beta is not None, HAS_INITIAL=initial_state is not None,
        K_FIRST=k_first, BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps,
    )  # fmt: skip


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """gdn_prefill_k_last: states [num_seqs, H, V, K]; g is alpha itself."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "linear", k_first=False)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state):
    """gdn_prefill_k_first: states [num_seqs, H, K, V]; alpha = exp(g)."""
    prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, output, final_state, "log", k_first=True)


# --- decode -----------------------------------------------------------------------------------------------------


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, state_ptr, A_log_ptr, a_ptr, dt_bias_ptr, b_ptr, output_ptr, new_state_ptr, scale,
    HQ: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    L2_NORM: tl.constexpr, K_FIRST: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    blocks = tl.cdiv(D, BV)
    block, row = program % blocks, program // blocks  # row: (sequence, value head)
    h, n = row % H, (row // H).to(tl.int64)

    j = tl.arange(0, BK)
    i = block * BV + tl.arange(0, BV)
    j_in, i_in = j < D, i < D
    inside = i_in[:, None] & j_in[None, :]
    at = j[None, :] * D + i[:, None] if K_FIRST else i[:, None] * D + j[None, :]
    at += row.to(tl.int64) * (D * D)

    S = tl.load(state_ptr + at, mask=inside, other=0.0).to(tl.float32)  # [BV, BK]
    q = tl.load(q_ptr + (n * HQ + h // (H // HQ)) * D + j, mask=j_in, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + (n * HK + h // (H // HK)) * D + j, mask=j_in, other=0.0).to(tl.float32)
    u = tl.load(v_ptr + (n * HV + h // (H // HV)) * D + i, mask=i_in, other=0.0).to(tl.float32)
    if L2_NORM:
        q *= 1.0 / tl.sqrt(tl.sum(q * q, axis=0) + 1e-6)
        k *= 1.0 / tl.sqrt(tl.sum(k * k, axis=0) + 1e-6)

    # softplus(x) = max(x, 0) + log1p(y) with y = exp(-|x|) in (0, 1]. There is no log1p here, and log(1 + y) loses a
    # small y; log1p(y) = 2 atanh(y / (2 + y)) does not. Its argument is at most 1/3: eight terms give float32.
    x = tl.load(a_ptr + n * H + h).to(tl.float32) + tl.load(dt_bias_ptr + h).to(tl.float32)
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 9.0 + s2 * (1.0 / 11.0 + s2 * series)
    series = 1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 * series)
    softplus = tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * series))
    alpha = tl.exp(-tl.exp(tl.load(A_log_ptr + h).to(tl.float32)) * softplus)
    beta = 1.0 / (1.0 + tl.exp(-tl.load(b_ptr + n * H + h).to(tl.float32)))

    S = S * alpha
    u = beta * (u - tl.sum(S * k[None, :], axis=1))  # the error, of the decayed state
    S += u[:, None] * k[None, :]
    o = tl.sum(S * q[None, :], axis=1) * scale
    tl.store(output_ptr + (n * H + h) * D + i, o.to(output_ptr.dtype.element_ty), mask=i_in)
    tl.store(new_state_ptr + at, S.to(new_state_ptr.dtype.element_ty), mask=inside)


def decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first):
    require_contiguous(
        q=q, k=k, v=v, state=state, A_log=A_log, a=a, dt_bias=dt_bias, b=b, output=output, new_state=new_state
    )
    batch_size, H, D, _ = state.shape
    if batch_size == 0:
        return
    BV, num_warps = blocking(D, q.device.type)
    decode_kernel[(batch_size * H * triton.cdiv(D, BV),)](
        q, k, v, state, A_log, a, dt_bias, b, output, new_state, default_scale(D, scale),
        HQ=q.shape[2], HK=k.shape[2], HV=v.shape[2], H=H, D=D,
        L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm), K_FIRST=k_first,
        BK=triton.next_power_of_2(D), BV=BV, num_warps=num_warps,
    )  # fmt: skip


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """gdn_decode_k_last: state [batch_size, H, V, K]."""
    decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first=False)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """gdn_decode_k_first: state [batch_size, H, K, V]."""
    decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first=True)


# --- both -------------------------------------------------------------------------------------------------------


def default_scale(head_size: int, scale: float | None) -> float:
    return head_size**-0.5 if scale is None else float(scale)


def require_contiguous(**tensors: torch.Tensor | None) -> None:
    for name, x in tensors.items():
        if x is not None and not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
