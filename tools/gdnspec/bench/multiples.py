"""Many multiples of one tensor: written, or compared with what calls wrote.

Where a ring lies on a GPU both run at the speed of its memory (runner/multiples_cuda.py): PyTorch would write each
product out before it compares, and read the tensor anew for every multiple of it.
"""

import os
from math import prod

import torch
from torch import Tensor

COMPARED = 1 << 30  # bytes at a time, by PyTorch
BLOCK = 1024  # elements that a program of the fused kernels holds
FUSED = (torch.float32, torch.bfloat16, torch.float16)


def write(out: Tensor, base: Tensor, factors: Tensor | None, rows: Tensor | None = None) -> None:
    """out[i] = base * factors[i], exactly where factors are powers of two.

    out [count, *shape]; base [*shape], contiguous; factors [count, *sizes], with 1 for each size along which they do
    not vary, or None where each multiple is `base` itself. With `rows`, [count, shape[0]] int64, row r of multiple i is
    out[rows[i, r]].
    """
    if _fused(out, base, rows):
        from gdnspec.bench import multiples_cuda

        multiples_cuda.write(out, base, *_spread(factors, base, len(rows if rows is not None else out)), rows)
    elif rows is not None:
        for i in range(len(rows)):
            out[rows[i]] = multiple(base, factors, i)
    elif factors is None:
        out.copy_(base.expand_as(out))
    else:
        torch.mul(base, factors.to(base.dtype), out=out)


def differing(got: Tensor, base: Tensor, factors: Tensor | None, rows: Tensor | None = None) -> Tensor:
    """[count], true where got[i] is not base * factors[i] in every element; as for `write`. NaN never is."""
    count = len(rows if rows is not None else got)
    if _fused(got, base, rows):
        from gdnspec.bench import multiples_cuda

        return multiples_cuda.differing(got, base, *_spread(factors, base, count), rows)
    found = torch.zeros(count, dtype=torch.bool, device=got.device)
    if rows is not None:
        for i in range(count):
            found[i] = (got[rows[i]] != multiple(base, factors, i)).any()
        return found
    step = max(1, COMPARED // max(1, base.nbytes))
    for start in range(0, count, step):
        some = slice(start, start + step)
        want = base if factors is None else base * factors[some].to(base.dtype)
        found[some] = (got[some] != want).flatten(1).any(1)
    return found


def multiple(base: Tensor, factors: Tensor | None, i: int) -> Tensor:
    """base * factors[i]."""
    return base if factors is None else base * factors[i].to(base.dtype)


def _fused(ring: Tensor, base: Tensor, rows: Tensor | None) -> bool:
    """An interpreted kernel, which the user's environment may ask for, would copy all of it to the CPU."""
    whole = rows is None or base[:1].numel() % BLOCK == 0  # a block lies within a row
    return ring.is_cuda and base.dtype in FUSED and whole and os.environ.get("TRITON_INTERPRET") != "1"


def _spread(factors: Tensor | None, base: Tensor, count: int) -> tuple[Tensor, int]:
    """Factors as float32 [count, middle], and how many elements in a row share one: element e of multiple i has
    factors[i, e // inner % middle]."""
    shape = base.shape
    varied = [i for i, size in enumerate(factors.shape[1:]) if size > 1] if factors is not None else []
    if factors is None or not varied:
        same = torch.ones(count, 1, device=base.device) if factors is None else factors.float().reshape(count, 1)
        return same.contiguous(), 1
    first, last = varied[0], varied[-1] + 1
    middle = factors.float().expand(-1, *[1] * first, *shape[first:last], *[1] * (len(shape) - last))
    return middle.reshape(count, -1).contiguous(), prod(shape[last:])
