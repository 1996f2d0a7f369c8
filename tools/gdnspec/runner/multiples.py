"""Many multiples of one tensor: written, or compared with what calls wrote.

Where a ring lies on a GPU both run at the speed of its memory (runner/multiples_cuda.py): PyTorch would write each
product out before it compares, and read the tensor anew for every multiple of it.
"""

import os
from math import prod

import torch
from torch import Tensor

COMPARED = 1 << 30  # bytes at a time, by PyTorch
FUSED = (torch.float32, torch.bfloat16, torch.float16)


def write(out: Tensor, base: Tensor, factors: Tensor | None) -> None:
    """out[i] = base * factors[i], exactly where factors are powers of two.

    out [count, *shape]; base [*shape], contiguous; factors [count, *sizes], with 1 for each size along which they do
    not vary, or None where each multiple is `base` itself.
    """
    if _fused(out, base):
        from gdnspec.runner import multiples_cuda

        multiples_cuda.write(out, base, *_spread(factors, out))
    elif factors is None:
        out.copy_(base.expand_as(out))
    else:
        torch.mul(base, factors.to(base.dtype), out=out)


def differing(got: Tensor, base: Tensor, factors: Tensor | None) -> Tensor:
    """[count], true where got[i] is not base * factors[i] in every element; shapes as for `write`. NaN never is."""
    if _fused(got, base):
        from gdnspec.runner import multiples_cuda

        return multiples_cuda.differing(got, base, *_spread(factors, got))
    found = torch.zeros(len(got), dtype=torch.bool, device=got.device)
    step = max(1, COMPARED // max(1, base.nbytes))
    for start in range(0, len(got), step):
        rows = slice(start, start + step)
        want = base if factors is None else base * factors[rows].to(base.dtype)
        found[rows] = (got[rows] != want).flatten(1).any(1)
    return found


def _fused(ring: Tensor, base: Tensor) -> bool:
    """An interpreted kernel, which the user's environment may ask for, would copy all of it to the CPU."""
    return ring.is_cuda and base.dtype in FUSED and os.environ.get("TRITON_INTERPRET") != "1"


def _spread(factors: Tensor | None, ring: Tensor) -> tuple[Tensor, int]:
    """Factors as float32 [count, middle], and how many elements in a row share one: element e of multiple i has
    factors[i, e // inner % middle]."""
    shape = ring.shape[1:]
    varied = [i for i, size in enumerate(factors.shape[1:]) if size > 1] if factors is not None else []
    if factors is None or not varied:
        count = len(ring)
        same = torch.ones(count, 1, device=ring.device) if factors is None else factors.float().reshape(count, 1)
        return same.contiguous(), 1
    first, last = varied[0], varied[-1] + 1
    middle = factors.float().expand(-1, *[1] * first, *shape[first:last], *[1] * (len(shape) - last))
    return middle.reshape(len(ring), -1).contiguous(), prod(shape[last:])
