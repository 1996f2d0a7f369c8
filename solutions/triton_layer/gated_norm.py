"""The gated root mean square norm: every head of every token is a row that is read once, whole, and written once."""

import torch
import triton
import triton.language as tl
from checks import INTERPRETED, require, require_dimensions, require_float
from conv1d import silu


def blocking(size: int) -> tuple[int, int]:
    """(rows of a program, num_warps): the one place to tune."""
    return (64, 1) if INTERPRETED else (max(1, 2048 // size), 4)


@triton.jit
def norm_kernel(
    x_ptr, z_ptr, weight_ptr, output_ptr, rows, eps, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    inside = (row < rows)[:, None] & (d < D)[None, :]
    at = row[:, None] * D + d[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + eps)
    y = x * factor[:, None] * weight[None, :] * silu(z)
    # A skipped row has x = 0: with eps 0 its factor is infinite, and z may hold anything, NaN too.
    y = tl.where(x == 0.0, 0.0, y)
    tl.store(output_ptr + at, y.to(output_ptr.dtype.element_ty), mask=inside)


def gated_rms_norm(x, z, weight, eps, output):
    """gdn_gated_rms_norm: x, z and output [rows, heads, D], of one type; beside an x in float32, which comes straight
    from a kernel, z and output may be of another."""
    require_dimensions(3, x=x)
    require_float(x=x, weight=weight, output=output)
    D, dtype = x.shape[2], output.dtype if x.dtype == torch.float32 else x.dtype
    require(x.device, x.dtype, x=(x, x.shape))
    require(x.device, dtype, z=(z, x.shape), output=(output, x.shape))
    require(x.device, weight.dtype, weight=(weight, (D,)))
    rows = x.shape[0] * x.shape[1]
    if rows == 0 or D == 0:
        return
    BD = triton.next_power_of_2(D)
    BR, num_warps = blocking(BD)
    norm_kernel[(triton.cdiv(rows, BR),)](
        x, z, weight, output, rows, 1e-6 if eps is None else float(eps), D=D, BR=BR, BD=BD, num_warps=num_warps,
    )  # fmt: skip
