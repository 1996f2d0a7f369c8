"""A commit: one program copies BLOCK elements of the state after the last token that counts into the row's slot."""

import triton
import triton.language as tl
from checks import require_commit
from steps import INTERPRETED


@triton.jit(do_not_specialize=["num_slots"])
def commit_kernel(
    pool_ptr, slots_ptr, steps_ptr, step_slots_ptr, accepted_ptr, num_slots, pool_stride, steps_stride,
    T: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A grid of one dimension: the others end at 65,535.
    blocks = tl.cdiv(SIZE, BLOCK)
    block, n = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    slot, source = tl.load(slots_ptr + n).to(tl.int64), tl.load(step_slots_ptr + n).to(tl.int64)
    count = tl.load(accepted_ptr + n)
    live = (slot >= 0) & (slot < num_slots) & (source >= 0) & (source < num_slots) & (count <= T)
    if live & (count > 0):  # else the slot stays
        i = block * BLOCK + tl.arange(0, BLOCK)
        state = tl.load(steps_ptr + source * steps_stride + (count - 1) * SIZE + i, mask=i < SIZE, other=0.0)
        tl.store(pool_ptr + slot * pool_stride + i, state, mask=i < SIZE)


def commit(pool, slots, step_states, step_slots, accepted):
    """pool [num_slots, H, D, D] and step_states [num_slots, T, H, D, D], both float32 or both bfloat16."""
    rows, tokens, size = require_commit(pool, slots, step_states, step_slots, accepted)
    BLOCK = triton.next_power_of_2(size) if INTERPRETED else min(2048, triton.next_power_of_2(size))
    commit_kernel[(rows * triton.cdiv(size, BLOCK),)](
        pool, slots, step_states, step_slots, accepted, pool.shape[0], pool.stride(0), step_states.stride(0),
        T=tokens, SIZE=size, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
