"""The convolution over whole sequences with its states at absolute edges: one program for BC channels of a sequence.

A program walks over the tokens of its sequence. Inputs of tokens come out of x, also those that a later token meets. It
reads the old state until the end, and writes the new one last.
"""

import triton
import triton.language as tl
from prefill_checks import require_conv_edges
from steps import INTERPRETED


@triton.jit
def window(x_ptr, state_at, carried, start, tokens, c, c_in, C: tl.constexpr, W: tl.constexpr, WP: tl.constexpr):
    """The last W - 1 inputs after so many tokens of a sequence, [BC, WP]: of the state before, or of x."""
    i = tl.arange(0, WP)
    place = tokens + i - (W - 1)  # the token; below 0 one of the state
    kept = c_in[:, None] & (i < W - 1)[None, :]
    held = tl.load(
        state_at[:, None] + (place + W - 1)[None, :], mask=kept & carried & (place < 0)[None, :], other=0.0
    )  # fmt: skip
    new = tl.load(x_ptr + (start + place)[None, :] * C + c[:, None], mask=kept & (place >= 0)[None, :], other=0.0)
    return tl.where((place < 0)[None, :], held, new)


@triton.jit(do_not_specialize=["num_slots", "interval"])
def conv_edges_kernel(
    x_ptr, weight_ptr, bias_ptr, cu_seqlens_ptr, pool_ptr, slots_ptr, held_ptr, positions_ptr, rows_ptr, output_ptr,
    checkpoints_ptr, num_slots, slot_stride, interval,
    C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BC: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(C, BC)
    block, n = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    c, i = block * BC + tl.arange(0, BC), tl.arange(0, WP)
    c_in = c < C
    kept = c_in[:, None] & (i < W - 1)[None, :]
    start = tl.load(cu_seqlens_ptr + n).to(tl.int64)
    length = tl.load(cu_seqlens_ptr + n + 1).to(tl.int64) - start
    row, last = tl.load(rows_ptr + n).to(tl.int64), tl.load(rows_ptr + n + 1).to(tl.int64)
    slot = tl.load(slots_ptr + n).to(tl.int64)
    live = (slot >= 0) & (slot < num_slots)  # -1, or a slot that is none: not followed
    part = c[:, None] * (W - 1) + i[None, :]
    if live & (length > 0):
        carried = tl.load(held_ptr + n) != 0
        state_at = pool_ptr + slot * slot_stride + c * (W - 1)
        edge = interval - tl.load(positions_ptr + n).to(tl.int64) % interval
        bias = tl.zeros([BC], dtype=tl.float32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
        for t in range(length):
            y = bias
            for j in tl.static_range(W):
                back = t + j - (W - 1)  # the token that tap j meets; below 0 it is one of the state
                held = tl.load(state_at + back + W - 1, mask=c_in & carried & (back < 0), other=0.0)
                new = tl.load(x_ptr + (start + back) * C + c, mask=c_in & (back >= 0), other=0.0)
                w = tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32)
                y += w * tl.where(back < 0, held, new).to(tl.float32)
            y = y / (1.0 + tl.exp(-y))
            tl.store(output_ptr + (start + t) * C + c, y.to(output_ptr.dtype.element_ty), mask=c_in)
        while (edge <= length) & (row < last):
            state = window(x_ptr, state_at, carried, start, edge, c, c_in, C, W, WP)
            tl.store(checkpoints_ptr + row * (C * (W - 1)) + part, state, mask=kept)
            row += 1
            edge += interval
        state = window(x_ptr, state_at, carried, start, length, c, c_in, C, W, WP)
        tl.debug_barrier()  # every thread has what it needs of the old state
        tl.store(pool_ptr + slot * slot_stride + part, state, mask=kept)
    else:
        for t in range(length):
            nothing = tl.zeros([BC], dtype=output_ptr.dtype.element_ty)
            tl.store(output_ptr + (start + t) * C + c, nothing, mask=c_in)
    while row < last:  # rows that no edge has
        nothing = tl.zeros([BC, WP], dtype=checkpoints_ptr.dtype.element_ty)
        tl.store(checkpoints_ptr + row * (C * (W - 1)) + part, nothing, mask=kept)
        row += 1


def conv1d_checkpoints_absolute(
    x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, start_positions, checkpoint_cu_starts,
    checkpoint_interval, output, checkpoints,
):  # fmt: skip
    """conv_states [num_slots, C, W - 1], updated in place; checkpoints [num_checkpoints, C, W - 1]."""
    C, W, num_seqs = require_conv_edges(
        x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, start_positions, checkpoint_cu_starts,
        output, checkpoints,
    )  # fmt: skip
    BC = triton.next_power_of_2(C) if INTERPRETED else 128  # it charges by the program
    conv_edges_kernel[(num_seqs * triton.cdiv(C, BC),)](
        x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, start_positions, checkpoint_cu_starts,
        output, checkpoints, len(conv_states), conv_states.stride(0), int(checkpoint_interval),
        C=C, W=W, HAS_BIAS=bias is not None, BC=BC, WP=triton.next_power_of_2(W - 1), num_warps=4,
    )  # fmt: skip
