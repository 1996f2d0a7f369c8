"""The convolution over a tree of drafts: one program for BC channels of a row.

A program walks over the row's tokens in their order. An input of a token is found by going up its path: in x, and,
where the path ends, in the slot's window. So no program reads what it has written.
"""

import triton
import triton.language as tl
from checks import require_conv_tree
from steps import INTERPRETED


@triton.jit(do_not_specialize=["num_slots"])
def conv_tree_kernel(
    x_ptr, weight_ptr, bias_ptr, pool_ptr, slots_ptr, steps_ptr, step_slots_ptr, drafts_ptr, parents_ptr, output_ptr,
    num_slots, pool_stride, steps_stride,
    T: tl.constexpr, C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(C, BC)
    block, n = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    c = block * BC + tl.arange(0, BC)
    c_in = c < C
    slot, to = tl.load(slots_ptr + n).to(tl.int64), tl.load(step_slots_ptr + n).to(tl.int64)
    count = tl.load(drafts_ptr + n)
    live = (slot >= 0) & (slot < num_slots) & (to >= 0) & (to < num_slots)  # -1, or a slot that is none: not followed
    count = tl.where(live, tl.minimum(count, T), 0)
    if count > 0:
        window_at, steps_at = pool_ptr + slot * pool_stride + c * (W - 1), steps_ptr + to * steps_stride + c * (W - 1)
        bias = tl.zeros([BC], dtype=tl.float32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
        for t in range(count):
            y = bias
            node = t  # whose input tap j meets; below 0 it is one of the window, -1 its newest
            for i in tl.static_range(W):
                j = W - 1 - i
                new = tl.load(x_ptr + (n * T + tl.maximum(node, 0)) * C + c, mask=c_in & (node >= 0), other=0.0)
                held = tl.load(window_at + (W - 1) + tl.minimum(node, -1), mask=c_in & (node < 0), other=0.0)
                x = tl.where(node < 0, held, new)
                w = tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32)
                y += w * x.to(tl.float32)
                if i < W - 1:
                    tl.store(steps_at + t * (C * (W - 1)) + (W - 2 - i), x, mask=c_in)
                parent = tl.load(parents_ptr + n * T + tl.maximum(node, 0))
                parent = tl.where((parent >= 0) & (parent < node), parent, -1)
                node = tl.where(node < 0, node - 1, parent)
            y = y / (1.0 + tl.exp(-y))
            tl.store(output_ptr + (n * T + t) * C + c, y.to(output_ptr.dtype.element_ty), mask=c_in)
    for t in range(count, T):  # tokens that are not there
        nothing = tl.zeros([BC], dtype=output_ptr.dtype.element_ty)
        tl.store(output_ptr + (n * T + t) * C + c, nothing, mask=c_in)


def conv1d_verify_tree(x, weight, bias, conv_states, slots, step_windows, step_slots, drafts, parents, output):
    """x and output [B, T, C]; conv_states [num_slots, C, W - 1]; step_windows [num_slots, T, C, W - 1], updated in
    place; parents [B, T]."""
    B, T, C, W = require_conv_tree(
        x, weight, bias, conv_states, slots, step_windows, step_slots, drafts, parents, output
    )
    if B == 0:
        return
    BC = triton.next_power_of_2(C) if INTERPRETED else 128  # it charges by the program
    conv_tree_kernel[(B * triton.cdiv(C, BC),)](
        x, weight, bias, conv_states, slots, step_windows, step_slots, drafts, parents, output, len(conv_states),
        conv_states.stride(0), step_windows.stride(0), T=T, C=C, W=W, HAS_BIAS=bias is not None, BC=BC, num_warps=4,
    )  # fmt: skip
