"""`runner.multiples` on a GPU: each program holds a block of the tensor and walks over the multiples of it, so that
every byte of the ring moves once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
PROGRAMS = 132 * 16  # enough to fill a large GPU


def write(out: Tensor, base: Tensor, factors: Tensor, inner: int) -> None:
    """out[i, e] = base[e] * factors[i, e // inner % middle]; out [count, *shape], base [*shape] contiguous, factors
    [count, middle] float32."""
    _launch(_write, out, base, factors, inner, out)


def differing(got: Tensor, base: Tensor, factors: Tensor, inner: int) -> Tensor:
    """[count], true where got[i] is not what `write` would write."""
    found = torch.zeros(len(got), dtype=torch.int32, device=got.device)
    _launch(_compare, got, base, factors, inner, found)
    return found != 0


def _launch(kernel: Any, ring: Tensor, base: Tensor, factors: Tensor, inner: int, result: Tensor) -> None:
    assert base.is_contiguous()
    assert ring[:1].squeeze(0).is_contiguous()
    if not base.numel() or not len(ring):
        return
    blocks = triton.cdiv(base.numel(), BLOCK)
    grid = (blocks, min(len(ring), triton.cdiv(PROGRAMS, blocks)))
    kernel[grid](ring, base, factors, result, base.numel(), len(ring), ring.stride(0), factors.shape[1], inner, BLOCK)


@triton.jit
def _block(n, row, middle, inner, BLOCK: tl.constexpr):
    """This program's elements [BLOCK], which of them exist, where their factors lie (few 64-bit divisions), where they
    lie in the first multiple that it visits, and how far it is to the next."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    element = start + tl.arange(0, BLOCK)
    place = ((start // inner) % middle).to(tl.int32) + ((start % inner).to(tl.int32) + tl.arange(0, BLOCK)) // inner
    first = tl.program_id(1).to(tl.int64) * row + element
    step = row * tl.num_programs(1).to(tl.int64)
    return element, element < n, place % middle, first, step


@triton.jit
def _write(ring, base, factors, result, n, count, row, middle, inner, BLOCK: tl.constexpr):
    element, exists, place, to, step = _block(n, row, middle, inner, BLOCK)
    value = tl.load(base + element, exists, other=0).to(tl.float32)
    for i in range(tl.program_id(1), count, tl.num_programs(1)):
        factor = tl.load(factors + i * middle + place)
        tl.store(result + to, (value * factor).to(result.dtype.element_ty), exists)
        to += step


@triton.jit
def _compare(ring, base, factors, result, n, count, row, middle, inner, BLOCK: tl.constexpr):
    element, exists, place, at, step = _block(n, row, middle, inner, BLOCK)
    value = tl.load(base + element, exists, other=0).to(tl.float32)
    for i in range(tl.program_id(1), count, tl.num_programs(1)):
        factor = tl.load(factors + i * middle + place)
        got = tl.load(ring + at, exists, other=0).to(tl.float32)
        want = (value * factor).to(ring.dtype.element_ty).to(tl.float32)
        tl.store(result + i + tl.zeros([BLOCK], tl.int32), 1, (got != want) & exists)
        at += step
