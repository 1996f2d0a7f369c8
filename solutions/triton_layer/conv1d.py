"""The causal convolution before the rule, and SiLU: one pass over a ragged batch (conv_walk.py), or one token of each
row.

conv_gates.py uses `convolved`: a program owns some channels of some tokens of one sequence. Its loads for the taps lie
one row apart: memory is read once, the caches give the rest. The first program of a sequence alone touches the state,
before it and after it, so none can see what another has written: it takes the last inputs from x, whoever makes the
tokens there.
"""

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
from conv_walk import blocking, prefill_kernel


def decode_blocking(channels: int) -> tuple[int, int]:
    """(channels of a program, num_warps): the one place to tune."""
    if INTERPRETED:
        return triton.next_power_of_2(channels), 1  # it charges by the program
    return 128, 4


# --- kernels --------------------------------------------------------------------------------------------------------


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def block_of(cu_seqlens_ptr, n, BT: tl.constexpr):
    """The first block of sequence n. No two sequences share one, and nobody counts the blocks of those before."""
    return tl.load(cu_seqlens_ptr + n).to(tl.int64) // BT + n


@triton.jit
def blocks_before(block, cu_seqlens_ptr, n, BT: tl.constexpr):
    """How many blocks of sequence n come before this one. Subtracted in 32 bits: with 64 ptxas 12.8 loses the carry
    into the upper half where a program's number is divided by 6 on the way, and a start lies 2^38 tokens too early."""
    return (block - block_of(cu_seqlens_ptr, n, BT)).to(tl.int32).to(tl.int64)


@triton.jit
def sequence_of(cu_seqlens_ptr, block, num_seqs, BT: tl.constexpr):
    """The last sequence whose first block is not beyond this one."""
    low, high = num_seqs * 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if block_of(cu_seqlens_ptr, middle, BT) <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def convolved(
    x_ptr, weight_ptr, bias_ptr, state_at, flag_ptr, start, stop, first, t, c, c_in,
    C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """Channels c [BC] of tokens t [BT] from `first` on, of a sequence from start to stop, after SiLU. Whoever has its
    first tokens moves its state, those channels of a slot, from before them to after all of them."""
    inside = (t < stop)[:, None] & c_in[None, :]
    y = tl.zeros([BT, BC], dtype=tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        row = t + (j - (W - 1))
        x = tl.load(x_ptr + row[:, None] * C + c[None, :], mask=inside & (row >= start)[:, None], other=0.0)
        y += tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32)[None, :] * x.to(tl.float32)

    if first == start:
        carried = tl.load(flag_ptr) != 0
        for i in tl.static_range(W - 1):
            s = tl.load(state_at + c * (W - 1) + i, mask=c_in & carried, other=0.0).to(tl.float32)
            for j in tl.static_range(i + 1):  # tap j meets input i of the state at token i - j
                w = tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32)
                y += tl.where((t - start == i - j)[:, None], (w * s)[None, :], 0.0)
        # Input i of the state after L tokens is token L - (W - 1) + i, or was input L + i of the state before.
        i = tl.arange(0, WP)
        moved = stop - start + i
        old = (moved < W - 1) & carried
        recent = stop - (W - 1) + i
        kept = c_in[:, None] & (i < W - 1)[None, :]
        before = tl.load(state_at + c[:, None] * (W - 1) + moved[None, :], mask=kept & old[None, :], other=0.0)
        after = tl.load(x_ptr + recent[None, :] * C + c[:, None], mask=kept & (recent >= start)[None, :], other=0.0)
        tl.debug_barrier()  # every thread has what it needs of the old state
        new = tl.where((recent >= start)[None, :], after.to(before.dtype), before)
        tl.store(state_at + c[:, None] * (W - 1) + i[None, :], new, mask=kept)
    return silu(y)


@triton.jit
def decode_kernel(
    x_ptr, weight_ptr, bias_ptr, pool_ptr, slots_ptr, output_ptr, num_slots, slot_stride,
    C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BC: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (C + BC - 1) // BC
    n = (tl.program_id(0) // across).to(tl.int64)
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    i = tl.arange(0, WP)
    c_in = c < C
    slot = tl.load(slots_ptr + n).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):  # -1, or a slot that is none: never followed
        tl.store(output_ptr + n * C + c, tl.zeros([BC], dtype=output_ptr.dtype.element_ty), mask=c_in)
        return

    state_at = pool_ptr + slot * slot_stride + c[:, None] * (W - 1) + i[None, :]
    kept = c_in[:, None] & (i < W - 1)[None, :]
    x = tl.load(x_ptr + n * C + c, mask=c_in, other=0.0)
    state = tl.load(state_at, mask=kept, other=0.0)
    shifted = tl.load(state_at + 1, mask=c_in[:, None] & (i < W - 2)[None, :], other=0.0)
    w = tl.load(weight_ptr + c[:, None] * W + i[None, :], mask=kept, other=0.0).to(tl.float32)
    y = tl.load(weight_ptr + c * W + (W - 1), mask=c_in, other=0.0).to(tl.float32) * x.to(tl.float32)
    y += tl.sum(w * state.to(tl.float32), axis=1)
    if HAS_BIAS:
        y += tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
    tl.debug_barrier()  # every thread has what it needs of the old state
    tl.store(state_at, tl.where((i == W - 2)[None, :], x[:, None].to(state.dtype), shifted), mask=kept)
    tl.store(output_ptr + n * C + c, silu(y).to(output_ptr.dtype.element_ty), mask=c_in)


# --- the host -------------------------------------------------------------------------------------------------------


def check_state(weight, bias, conv_states, slots, rows, device):
    """(channels, kernel width), once weights and states fit together."""
    require_dimensions(2, weight=weight)
    C, W = weight.shape
    if not 2 <= W <= 4:
        raise ValueError(f"kernel width {W} is not served: 2 to 4 are")
    require_pool(conv_states, "conv_states", (C, W - 1), device)
    require(device, conv_states.dtype, weight=(weight, (C, W)))
    if bias is not None:
        require(device, conv_states.dtype, bias=(bias, (C,)))
    require(device, torch.int32, slots=(slots, (rows,)))
    if DEBUG:
        check_slots(slots, len(conv_states))
    return C, W


def check(x, weight, bias, conv_states, slots, output, rows):
    """(channels, kernel width), once everything fits together."""
    require_dimensions(2, x=x)
    require_float(x=x)
    C, W = check_state(weight, bias, conv_states, slots, rows, x.device)
    require(x.device, x.dtype, x=(x, (x.shape[0], C)), output=(output, x.shape))
    if x.dtype not in (conv_states.dtype, torch.float32):  # float32 is what a projection gives before it is rounded
        raise ValueError(f"conv_states is {conv_states.dtype}, and what it keeps is {x.dtype}")
    return C, W


def conv1d_prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, output):
    """gdn_conv1d_prefill: x and output [tokens, C]; conv_states [slots, C, W - 1], updated in place."""
    require_dimensions(1, cu_seqlens=cu_seqlens)
    num_seqs = len(cu_seqlens) - 1
    if num_seqs < 1:
        raise ValueError("cu_seqlens has one entry more than there are sequences, and none is none")
    C, W = check(x, weight, bias, conv_states, slots, output, num_seqs)
    require(x.device, torch.int64, cu_seqlens=(cu_seqlens, (num_seqs + 1,)))
    require(x.device, torch.bool, has_initial_state=(has_initial_state, (num_seqs,)))
    if DEBUG:
        check_bounds("cu_seqlens", cu_seqlens, len(x))
    if len(x) == 0 or C == 0:
        return
    BT, AT_ONCE, BC, registers = blocking(len(x), C)
    limit = {"maxnreg": registers} if registers and not torch.version.hip else {}
    prefill_kernel[(triton.cdiv(len(x), BT) * triton.cdiv(C, BC),)](
        x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state.view(torch.uint8), output,
        num_seqs, len(x), len(conv_states), conv_states.stride(0),
        C=C, W=W, HAS_BIAS=bias is not None, BT=BT, AT_ONCE=AT_ONCE, BC=BC, num_warps=1, **limit,
    )  # fmt: skip


def conv1d_decode(x, weight, bias, conv_states, slots, output):
    """gdn_conv1d_decode: x and output [rows, C]; conv_states [slots, C, W - 1], updated in place."""
    C, W = check(x, weight, bias, conv_states, slots, output, len(x))
    if len(x) == 0:
        return
    BC, num_warps = decode_blocking(C)
    decode_kernel[(len(x) * triton.cdiv(C, BC),)](
        x, weight, bias, conv_states, slots, output, len(conv_states), conv_states.stride(0),
        C=C, W=W, HAS_BIAS=bias is not None, BC=BC, WP=triton.next_power_of_2(W - 1), num_warps=num_warps,
    )  # fmt: skip
