"""The convolution for verify: one program for BC channels of a row.

A program finds the window of its row in the state, from where the last step's accepted tokens end, and walks over the
tokens. Inputs of tokens come out of x, also those that a later token meets; the state is written once, at the end.
"""

import triton
import triton.language as tl
from checks import require_conv_verify
from steps import INTERPRETED


@triton.jit(do_not_specialize=["num_slots"])
def conv_verify_kernel(
    x_ptr, weight_ptr, bias_ptr, pool_ptr, slots_ptr, accepted_ptr, drafts_ptr, output_ptr, num_slots, slot_stride,
    T: tl.constexpr, C: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, BC: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(C, BC)
    block, n = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    c = block * BC + tl.arange(0, BC)
    c_in = c < C
    slot = tl.load(slots_ptr + n).to(tl.int64)
    first, count = tl.load(accepted_ptr + n) - 1, tl.load(drafts_ptr + n)
    live = (slot >= 0) & (slot < num_slots) & (first >= 0) & (first < T)  # -1, or a slot that is none: not followed
    count = tl.where(live, tl.minimum(count, T), 0)
    if count > 0:
        state_at = pool_ptr + slot * slot_stride + c * (W - 2 + T)
        window_at = state_at + first
        bias = tl.zeros([BC], dtype=tl.float32)
        if HAS_BIAS:
            bias = tl.load(bias_ptr + c, mask=c_in, other=0.0).to(tl.float32)
        for t in range(count):
            y = bias
            for j in tl.static_range(W):
                back = t + j - (W - 1)  # the token that tap j meets; below 0 it is one of the window
                held = tl.load(window_at + t + j, mask=c_in & (back < 0), other=0.0)
                new = tl.load(x_ptr + (n * T + back) * C + c, mask=c_in & (back >= 0), other=0.0)
                w = tl.load(weight_ptr + c * W + j, mask=c_in, other=0.0).to(tl.float32)
                y += w * tl.where(back < 0, held, new).to(tl.float32)
            y = y / (1.0 + tl.exp(-y))
            tl.store(output_ptr + (n * T + t) * C + c, y.to(output_ptr.dtype.element_ty), mask=c_in)
        # The state afterwards: the last W - 2 of the window, then the tokens. What is behind them stays.
        i = tl.arange(0, WP)
        kept = c_in[:, None] & (i < W - 2 + count)[None, :]
        old = (i < W - 2)[None, :]
        held = tl.load(window_at[:, None] + 1 + i[None, :], mask=kept & old, other=0.0)
        rows = n * T + (i - (W - 2))
        new = tl.load(x_ptr + rows[None, :] * C + c[:, None], mask=kept & ((i >= W - 2)[None, :]), other=0.0)
        tl.debug_barrier()  # every thread has what it needs of the old state
        tl.store(state_at[:, None] + i[None, :], tl.where(old, held, new), mask=kept)
    for t in range(count, T):  # tokens that are not there
        nothing = tl.zeros([BC], dtype=output_ptr.dtype.element_ty)
        tl.store(output_ptr + (n * T + t) * C + c, nothing, mask=c_in)


def conv1d_verify(x, weight, bias, conv_states, slots, accepted, drafts, output):
    """x and output [B, T, C]; conv_states [num_slots, C, W - 2 + T], updated in place."""
    B, T, C, W = require_conv_verify(x, weight, bias, conv_states, slots, accepted, drafts, output)
    if B == 0:
        return
    BC = triton.next_power_of_2(C) if INTERPRETED else 128  # it charges by the program
    conv_verify_kernel[(B * triton.cdiv(C, BC),)](
        x, weight, bias, conv_states, slots, accepted, drafts, output, len(conv_states), conv_states.stride(0),
        T=T, C=C, W=W, HAS_BIAS=bias is not None, BC=BC, WP=triton.next_power_of_2(W - 2 + T), num_warps=4,
    )  # fmt: skip
