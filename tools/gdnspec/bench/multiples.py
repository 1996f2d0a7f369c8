"""Writes many multiples of one tensor, or compares them with what calls wrote.

On a GPU, both run at the speed of its memory (bench/multiples_cuda.py). PyTorch would store each product before it
compares, and read the tensor again for every multiple.
"""

import os
from math import prod

import torch
from torch import Tensor

from gdnspec.numerics.torch_arrays import comparable, times

COMPARED = 1 << 30  # bytes per step, with PyTorch
BLOCK = 1024  # elements per program of the fused kernels
FUSED = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
SINCE_ADA = torch.float8_e4m3fn  # Triton has no such numbers for a GPU before


def write(out: Tensor, base: Tensor, factors: Tensor | None, rows: Tensor | None = None) -> None:
    """Writes out[i] = base * factors[i], which is exact if factors are powers of two.

    out [count, *shape]; base [*shape], contiguous; factors [count, *sizes], with size 1 where they do not vary, or None
    if each multiple is `base` itself. With `rows`, [count, shape[0]] int64, row r of multiple i is out[rows[i, r]].
    """
    if _fused(out, base, rows):
        from gdnspec.bench import multiples_cuda

        multiples_cuda.write(out, base, *_spread(factors, base, len(rows if rows is not None else out)), rows)
    elif rows is not None:
        for i in range(len(rows)):
            out[rows[i]] = multiple(base, factors, i)
    elif factors is None:
        out.copy_(base.expand_as(out))
    elif base.element_size() == 1:
        out.copy_(times(base, factors))
    else:
        torch.mul(base, factors.to(base.dtype), out=out)


def differing(got: Tensor, base: Tensor, factors: Tensor | None, rows: Tensor | None = None) -> Tensor:
    """[count], true if got[i] differs from base * factors[i] in any element; arguments as for `write`. NaN differs."""
    count = len(rows if rows is not None else got)
    if _fused(got, base, rows):
        from gdnspec.bench import multiples_cuda

        return multiples_cuda.differing(got, base, *_spread(factors, base, count), rows)
    found = torch.zeros(count, dtype=torch.bool, device=got.device)
    if rows is not None:
        for i in range(count):
            found[i] = (comparable(got[rows[i]]) != comparable(multiple(base, factors, i))).any()
        return found
    step = max(1, COMPARED // max(1, base.nbytes))
    for start in range(0, count, step):
        some = slice(start, start + step)
        want = base if factors is None else times(base, factors[some])
        found[some] = (comparable(got[some]) != comparable(want)).flatten(1).any(1)
    return found


def multiple(base: Tensor, factors: Tensor | None, i: int) -> Tensor:
    """base * factors[i]."""
    return base if factors is None else times(base, factors[i])


def _fused(ring: Tensor, base: Tensor, rows: Tensor | None) -> bool:
    """Whether to use the fused kernels. Interpreted ones (TRITON_INTERPRET=1) would copy everything to the CPU."""
    whole = rows is None or base[:1].numel() % BLOCK == 0  # a block is within one row
    if not ring.is_cuda or not whole or os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return base.dtype in FUSED or (base.dtype == SINCE_ADA and torch.cuda.get_device_capability() >= (8, 9))


def _spread(factors: Tensor | None, base: Tensor, count: int) -> tuple[Tensor, int]:
    """Factors as float32 [count, middle], and how many adjacent elements share one: element e of multiple i has the
    factor factors[i, e // inner % middle]."""
    shape = base.shape
    varied = [i for i, size in enumerate(factors.shape[1:]) if size > 1] if factors is not None else []
    if factors is None or not varied:
        same = torch.ones(count, 1, device=base.device) if factors is None else factors.float().reshape(count, 1)
        return same.contiguous(), 1
    first, last = varied[0], varied[-1] + 1
    middle = factors.float().expand(-1, *[1] * first, *shape[first:last], *[1] * (len(shape) - last))
    return middle.reshape(count, -1).contiguous(), prod(shape[last:])
