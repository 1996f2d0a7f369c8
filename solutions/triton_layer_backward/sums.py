"""What parameters get: a sum over all tokens. Each block leaves its own, and one kernel adds these in one order, so no
bit depends on which block is done first."""

import torch
import triton
import triton.language as tl
from checks import INTERPRETED


def blocking(columns: int) -> tuple[int, int, int]:
    """(parts at a time, columns of a program, num_warps): the one place to tune."""
    if INTERPRETED:
        return 64, min(4096, triton.next_power_of_2(columns)), 1
    return (32, 32, 4) if columns > 1024 else (256, 4, 4)  # few columns leave few programs


@triton.jit
def sum_kernel(parts_ptr, taps_ptr, rest_ptr, parts, C, W: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """parts [parts, W + 1, C], added over the first dimension. The last row is `rest` [C], the others `taps` [C, W]."""
    at = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    inside = at < C * (W + 1)
    total = tl.zeros([BP, BC], dtype=tl.float32)
    for first in range(0, parts, BP):
        part = first + tl.arange(0, BP)
        row = parts_ptr + part.to(tl.int64)[:, None] * (C * (W + 1)) + at[None, :]
        total += tl.load(row, mask=(part < parts)[:, None] & inside[None, :], other=0.0)
    y = tl.sum(total, axis=0)
    j, c = at // C, at % C
    tl.store(taps_ptr + c * W + j, y, mask=inside & (j < W))
    tl.store(rest_ptr + c, y, mask=inside & (j == W))


def add_parts(parts: torch.Tensor, taps: torch.Tensor | None, rest: torch.Tensor) -> None:
    """parts [parts, W + 1, C] -> taps [C, W], rest [C]. Without parts: zeros."""
    C, W = rest.shape[0], parts.shape[1] - 1
    BP, BC, num_warps = blocking(C * (W + 1))
    sum_kernel[(triton.cdiv(C * (W + 1), BC),)](
        parts, rest if taps is None else taps, rest, parts.shape[0], C, W=W, BP=BP, BC=BC, num_warps=num_warps,
    )  # fmt: skip
