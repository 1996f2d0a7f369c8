"""The gated delta rule for one token, or a few, of every sequence of a batch: every decode definition from one kernel.

A program owns BV value channels of one head of one row: their part of the state, for all key channels, in registers,
from its first token to its last. Value channels never mix, so programs share nothing. Nearly all of the time is the
state's way from memory and back, so what waits for it is kept short: both sums over key channels, S k and S q, are
taken of the state as it was before the token, in one reduction. The read-out after the write follows from them:
S' q = alpha S q + u (k . q).

Arithmetic is float32; what is written is rounded once.
"""

import os
from functools import cache

import torch
import triton
import triton.language as tl

# Slots are values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def blocking(K: int, V: int, element_size: int, k_first: bool, tokens: int, heads: int) -> tuple[int, int, int]:
    """(BV, num_warps, bytes that lanes read side by side) for `heads` states of V x K elements in all: the one place to
    tune."""
    if INTERPRETED:
        return triton.next_power_of_2(V), 1, 128  # it charges by the program
    if k_first:  # lines lie along the value channels; warps share the keys
        if element_size == 2:
            return 32, max(1, K // 128), 128
        return (16, 1, 128) if heads <= 256 else (64, max(1, K // 64), 128)
    # 4 KiB of state a warp: eight 16-byte loads a thread.
    BK = triton.next_power_of_2(K)
    return max(1, 4096 // (element_size * BK)), 1, 128 if tokens == 1 else 256


@cache
def may_start_early(device: torch.device) -> bool:
    """Whether a launch may begin before the one ahead of it has ended (programmatic dependent launch)."""
    return not INTERPRETED and (device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0))


# --- the kernel -------------------------------------------------------------------------------------------------


@triton.jit
def softplus(x):
    # max(x, 0) + log1p(y), y = exp(-|x|) in (0, 1]. There is no log1p here, and log(1 + y) loses a small y;
    # log1p(y) = 2 atanh(y / (2 + y)) does not. Its argument is at most 1/3: eight terms give float32.
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 9.0 + s2 * (1.0 / 11.0 + s2 * series)
    series = 1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 * series)
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * series))


@triton.jit
def sum_of_keys(x):
    """[.., KC, KI] -> [..]"""
    return tl.sum(tl.sum(x, axis=2), axis=1)


@triton.jit
def pick(values, chosen):
    """The one element that is chosen, as a scalar."""
    return tl.sum(tl.where(chosen, values, 0), axis=0)


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, from_ptr, to_ptr, read_ptr, write_ptr, accepted_ptr, A_log_ptr, a_ptr, dt_bias_ptr, b_ptr,
    output_ptr, num_slots, slot_stride, scale,
    T: tl.constexpr, H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    QK_STRIDE: tl.constexpr, V_STRIDE: tl.constexpr, K_AT: tl.constexpr, V_AT: tl.constexpr,
    L2_NORM: tl.constexpr, DOUBLED: tl.constexpr, K_FIRST: tl.constexpr, POOL: tl.constexpr, VERIFY: tl.constexpr,
    TP: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KI: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()  # started before the kernel ahead had ended: what that one wrote is here from now on
    # A grid of one dimension: the others end at 65,535.
    program = tl.program_id(0)
    blocks = tl.cdiv(V, BV)
    block, row = program % blocks, program // blocks
    h, n = row % H, (row // H).to(tl.int64)

    # S [BV, BK / KI, KI]. In k_last KI key channels are a line, so that a row is summed in a thread first and over the
    # few lanes of a line then; in k_first lines lie along BV, and KI is all of the key channels.
    KC: tl.constexpr = BK // KI
    i = block * BV + tl.arange(0, BV)
    j = (tl.arange(0, KC) * KI)[None, :, None] + tl.arange(0, KI)[None, None, :]
    i_in = i < V
    j_in = j < K
    inside = i_in[:, None, None] & j_in
    part = j * V + i[:, None, None] if K_FIRST else i[:, None, None] * K + j
    part += h * (K * V)

    token = n * T
    t_all = tl.arange(0, TP)
    t_in = t_all < T
    o_at = output_ptr + (token * H + h) * V + i
    stride = tl.cast(slot_stride, tl.int64)  # states outgrow 32 bits
    slot = n
    if POOL:
        first = tl.load(read_ptr + n)
        slots = tl.load(write_ptr + token + t_all, mask=t_in, other=0)
        low, high = tl.minimum(first, tl.min(slots, axis=0)), tl.maximum(first, tl.max(slots, axis=0))
        live = (low >= 0) & (high < num_slots)
        if VERIFY:
            accepted = tl.load(accepted_ptr + n)
            live = live & (accepted >= 0) & (accepted <= T)
            first = tl.where(accepted == 0, first, pick(slots, t_all == accepted - 1))
        if not live:  # -1, or a slot that is none: never followed
            for t in range(T):
                tl.store(o_at + t * (H * V), tl.zeros([BV], dtype=output_ptr.dtype.element_ty), mask=i_in)
            return
        slot = first.to(tl.int64)

    # Gates of all tokens, [TP].
    gate_at = (token + t_all) * H + h
    a_all = tl.load(a_ptr + gate_at, mask=t_in, other=0.0).to(tl.float32)
    b_all = tl.load(b_ptr + gate_at, mask=t_in, other=0.0).to(tl.float32)
    dt_bias = tl.load(dt_bias_ptr + h).to(tl.float32)
    rate = tl.exp(tl.load(A_log_ptr + h).to(tl.float32))

    # The first token's vectors; later ones are asked for a token ahead.
    qk_at = token * QK_STRIDE + h // GROUP * K
    q_at = q_ptr + qk_at + j
    k_at = k_ptr + qk_at + K_AT + j
    v_at = v_ptr + token * V_STRIDE + V_AT + h * V + i
    q_next = tl.load(q_at, mask=j_in, other=0.0)  # [1, KC, KI]
    k_next = tl.load(k_at, mask=j_in, other=0.0)
    v_next = tl.load(v_at, mask=i_in, other=0.0)
    if K_FIRST:
        # Once more, spread over all threads: where warps sum together, the tile's way would have many write one sum.
        j_flat = tl.arange(0, BK)
        q_flat = tl.load(q_ptr + qk_at + j_flat, mask=j_flat < K, other=0.0)
        k_flat = tl.load(k_ptr + qk_at + K_AT + j_flat, mask=j_flat < K, other=0.0)

    # Last, because Triton gives the layout of the last load to whatever meets several: S is never rearranged.
    S = tl.load(from_ptr + slot * stride + part, mask=inside, other=0.0)
    # No load sinks below this. Without it ptxas asks for v only after it has waited for what norms and gates need.
    tl.debug_barrier()
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # once loads are on their way: sooner, the next programs are in the way

    S = S.to(tl.float32)
    alphas = tl.exp(-rate * softplus(a_all + dt_bias))
    betas = (2.0 if DOUBLED else 1.0) / (1.0 + tl.exp(-b_all))
    for t in range(T):
        q, k, v = q_next.to(tl.float32), k_next.to(tl.float32), v_next.to(tl.float32)
        if T > 1:
            ahead = tl.minimum(t + 1, T - 1)
            q_next = tl.load(q_at + ahead * QK_STRIDE, mask=j_in, other=0.0)
            k_next = tl.load(k_at + ahead * QK_STRIDE, mask=j_in, other=0.0)
            v_next = tl.load(v_at + ahead * V_STRIDE, mask=i_in, other=0.0)
        alpha = pick(alphas, t_all == t)
        beta = pick(betas, t_all == t)
        if K_FIRST:
            q1, k1 = q_flat.to(tl.float32), k_flat.to(tl.float32)
            qq, kk, qk = tl.sum(q1 * q1, axis=0), tl.sum(k1 * k1, axis=0), tl.sum(q1 * k1, axis=0)
        else:
            qq, kk, qk = sum_of_keys(q * q), sum_of_keys(k * k), sum_of_keys(q * k)  # [1]
        q_factor, k_factor = 1.0, 1.0
        if L2_NORM:
            q_factor = 1.0 / tl.sqrt(qq + 1e-6)
            k_factor = 1.0 / tl.sqrt(kk + 1e-6)
        sums = tl.join(tl.sum(S * k, axis=1), tl.sum(S * q, axis=1))  # [BV, KI, 2]
        held, seen = tl.split(tl.sum(sums, axis=1))  # S k, S q
        # Which product of a sum is rounded is written out. The compiler's own choice is not the same in every register,
        # and a value channel's result would depend on where it lies.
        u = beta * tl.fma(-alpha, held * k_factor, v)  # the error, of the decayed state
        o = scale * tl.fma(u, qk * q_factor * k_factor, alpha * (seen * q_factor))  # after the write
        S = tl.fma((u * k_factor)[:, None, None], k, alpha * S)

        tl.store(o_at + t * (H * V), o.to(output_ptr.dtype.element_ty), mask=i_in)
        if POOL:
            slot = tl.load(write_ptr + token + t).to(tl.int64)
        tl.store(to_ptr + slot * stride + part, S.to(to_ptr.dtype.element_ty), mask=inside)


# --- the host ---------------------------------------------------------------------------------------------------


def launch(
    q, k, v, state, new_state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
    rows, tokens, key_heads, k_first=False, read_slots=None, write_slots=None, accepted=None, packed=False,
    doubled=False,
):  # fmt: skip
    """One launch for `rows` x `tokens`. `state` and `new_state` may be one pool, then addressed by slots. `doubled`:
    beta = 2 sigmoid(b)."""
    _, H, V, K = state.shape  # k_first has K = V
    if rows == 0 or H == 0:
        return
    element = state.element_size()
    BV, num_warps, line = blocking(K, V, element, k_first, tokens, rows * H)
    BK = triton.next_power_of_2(K)
    qk = key_heads * K
    early = may_start_early(state.device)
    decode_kernel[(rows * H * triton.cdiv(V, BV),)](
        q, k, v, state, new_state, read_slots, write_slots, accepted, A_log, a, dt_bias, b,
        output, state.shape[0], state.stride(0), K**-0.5 if scale is None else float(scale),
        T=tokens, H=H, GROUP=H // key_heads, K=K, V=V,
        QK_STRIDE=2 * qk + H * V if packed else qk, V_STRIDE=2 * qk + H * V if packed else H * V,
        K_AT=qk if packed else 0, V_AT=2 * qk if packed else 0,
        L2_NORM=use_qk_l2norm is None or bool(use_qk_l2norm), DOUBLED=doubled, K_FIRST=k_first,
        POOL=read_slots is not None, VERIFY=accepted is not None,
        TP=triton.next_power_of_2(tokens), BK=BK, BV=BV, KI=BK if k_first else min(BK, line // element),
        EARLY=early, num_warps=num_warps, enable_fp_fusion=False, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip


def heads_of(q: torch.Tensor, state: torch.Tensor, name: str) -> tuple[int, int, int, int]:
    """(key heads, heads, K, V), once they fit together."""
    require_dimensions(4, q=q, **{name: state})
    key_heads, H, V, K = q.shape[2], *state.shape[1:]
    require_groups(key_heads, H)
    return key_heads, H, K, V


def require_groups(key_heads: int, H: int) -> None:
    if key_heads <= 0 or H % key_heads:
        raise ValueError(f"num_q_heads {key_heads} does not divide num_v_heads {H}")


def require_dimensions(count: int, **tensors: torch.Tensor) -> None:
    for name, x in tensors.items():
        if x.ndim != count:
            raise ValueError(f"{name} has {x.ndim} dimensions, not {count}")


def require(device: torch.device, dtype: torch.dtype, **tensors: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    for name, (x, shape) in tensors.items():
        if x.dtype != dtype:
            raise ValueError(f"{name} is {x.dtype}, not {dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, not on {device}")


def require_state(x: torch.Tensor, name: str, one_size: bool = True) -> None:
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"{name} is {x.dtype}, neither float32 nor bfloat16")
    if x.ndim != 4 or (one_size and x.shape[2] != x.shape[3]):
        sizes = "head_size, head_size" if one_size else "value_head_dim, key_head_dim"
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not [.., heads, {sizes}]")
    for what, size in zip(("value_head_dim", "key_head_dim"), x.shape[2:], strict=True):
        if size > 256:
            raise ValueError(f"{'head_size' if one_size else what} {size} is not served: up to 256 is")


def require_pool(pool: torch.Tensor, one_size: bool) -> None:
    require_state(pool, "pool", one_size)
    num_slots, H, V, K = pool.shape
    if not pool[:1].is_contiguous() or (num_slots > 1 and pool.stride(0) < H * V * K):
        raise ValueError(f"pool must be contiguous but for its first dimension; its strides are {pool.stride()}")


def decode(
    q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first, one_size=True,
    doubled=False,
):  # fmt: skip
    require_state(state, "state", one_size)
    key_heads, H, K, V = heads_of(q, state, "state")
    B = state.shape[0]
    qk, vo, gate = (B, 1, key_heads, K), (B, 1, H, V), (B, 1, H)
    device, bf16 = state.device, torch.bfloat16
    require(device, bf16, q=(q, qk), k=(k, qk), v=(v, vo), output=(output, vo))
    require(device, bf16, a=(a, gate), b=(b, gate), dt_bias=(dt_bias, (H,)))
    require(device, torch.float32, A_log=(A_log, (H,)))
    require(device, state.dtype, state=(state, (B, H, V, K)), new_state=(new_state, (B, H, V, K)))
    launch(
        q, k, v, state, new_state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
        rows=B, tokens=1, key_heads=key_heads, k_first=k_first, doubled=doubled,
    )  # fmt: skip


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """state [batch_size, H, V, K], float32 or bfloat16."""
    decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first=False)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """state [batch_size, H, K, V], float32 or bfloat16."""
    decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first=True)


def in_pool(q, k, v, pool, read_slots, write_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
            names, one_size=True, doubled=False):  # fmt: skip
    """T tokens a row: the state comes from one slot and goes, after token t, to write_slots[.., t]."""
    require_pool(pool, one_size)
    key_heads, H, K, V = heads_of(q, pool, "pool")
    B, T = q.shape[:2]
    if not 1 <= T <= 16:
        raise ValueError(f"{T} tokens a row are not served: 1 to 16 are")
    qk, vo, gate = (B, T, key_heads, K), (B, T, H, V), (B, T, H)
    device, bf16 = pool.device, torch.bfloat16
    require(device, bf16, q=(q, qk), k=(k, qk), v=(v, vo), output=(output, vo))
    require(device, bf16, a=(a, gate), b=(b, gate), dt_bias=(dt_bias, (H,)))
    require(device, torch.float32, A_log=(A_log, (H,)))
    written = (B,) if accepted is None else (B, T)
    require(device, torch.int32, **{names[0]: (read_slots, (B,)), names[1]: (write_slots, written)})
    if accepted is not None:
        require(device, torch.int32, accepted=(accepted, (B,)))
    if DEBUG:
        check_slots(read_slots.tolist(), write_slots.view(B, T).tolist(), accepted, pool.shape[0], names)
    launch(
        q, k, v, pool, pool, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
        rows=B, tokens=T, key_heads=key_heads, read_slots=read_slots, write_slots=write_slots, accepted=accepted,
        doubled=doubled,
    )  # fmt: skip


def check_slots(read, write, accepted, num_slots, names):
    """For debugging: what the definitions ask of slots, which the kernel takes on trust but for their range."""
    counts = [0] * len(read) if accepted is None else accepted.tolist()
    used = [slot for slots in write for slot in slots if slot != -1]
    for name, slots in ((names[0], read), (names[1], [slot for row in write for slot in row])):
        outside = [slot for slot in slots if not -1 <= slot < num_slots]
        if outside:
            raise ValueError(f"{name} names slot {outside[0]}; there are {num_slots}")
    if len(set(used)) < len(used):
        raise ValueError(f"{names[1]} names a slot twice")
    for n, (first, slots, count) in enumerate(zip(read, write, counts, strict=True)):
        if any((slot == -1) != (first == -1) for slot in slots):
            raise ValueError(f"row {n} is skipped by some of its slots and not by others: {first}, {slots}")
        if not 0 <= count <= len(slots):
            raise ValueError(f"accepted[{n}] is {count}; a row has {len(slots)} tokens")
        source = slots[count - 1] if count else first
        if source in set(used) - set(slots):
            raise ValueError(f"row {n} reads slot {source}, which another row writes")


def require_one_token(q: torch.Tensor) -> None:
    if q.ndim == 4 and q.shape[1] != 1:
        raise ValueError(f"q has {q.shape[1]} tokens a row, not 1")


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, output
):  # fmt: skip
    """pool [num_slots, H, V, K], float32 or bfloat16, updated in place."""
    require_one_token(q)
    in_pool(q, k, v, pool, read_slots, write_slots, None, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
            names=("read_slots", "write_slots"))  # fmt: skip


def verify_k_last(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output
):  # fmt: skip
    """pool [num_slots, H, V, K]; q, k, v, a and b hold T tokens a row, whose states go to T slots."""
    in_pool(q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
            names=("initial_slots", "state_slots"))  # fmt: skip


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    """mixed_qkv [batch_size, (2 HQ + H) D]: heads of q, of k, of v. state [batch_size, H, V, K]."""
    require_state(state, "state")
    require_dimensions(2, mixed_qkv=mixed_qkv)
    B, H, D, _ = state.shape
    keys = mixed_qkv.shape[1] - H * D
    if keys <= 0 or keys % (2 * D):
        raise ValueError(f"{mixed_qkv.shape[1]} elements in a row of mixed_qkv: {H} value heads leave no whole q and k")
    key_heads = keys // (2 * D)
    require_groups(key_heads, H)
    device, bf16 = state.device, torch.bfloat16
    require(device, bf16, mixed_qkv=(mixed_qkv, (B, 2 * key_heads * D + H * D)), output=(output, (B, H, D)))
    require(device, bf16, a=(a, (B, H)), b=(b, (B, H)), dt_bias=(dt_bias, (H,)))
    require(device, torch.float32, A_log=(A_log, (H,)))
    require(device, state.dtype, state=(state, (B, H, D, D)), new_state=(new_state, (B, H, D, D)))
    launch(
        mixed_qkv, mixed_qkv, mixed_qkv, state, new_state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
        rows=B, tokens=1, key_heads=key_heads, packed=True,
    )  # fmt: skip
