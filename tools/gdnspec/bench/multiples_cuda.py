"""`bench.multiples` on a GPU: each program keeps a block of the tensor and loops over its multiples, so that every byte
of the ring moves once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gdnspec.bench.multiples import BLOCK

PROGRAMS = 132 * 16  # enough to fill a large GPU


def write(out: Tensor, base: Tensor, factors: Tensor, inner: int, rows: Tensor | None) -> None:
    """Writes out[i, e] = base[e] * factors[i, e // inner % middle]; out [count, *shape], base [*shape] contiguous,
    factors [count, middle] float32. With `rows` [count, shape[0]], row r of multiple i is out[rows[i, r]]."""
    _launch(_write, out, base, factors, inner, rows, out)


def differing(got: Tensor, base: Tensor, factors: Tensor, inner: int, rows: Tensor | None) -> Tensor:
    """[count], true if got[i] differs from what `write` would write."""
    found = torch.zeros(len(factors), dtype=torch.int32, device=got.device)
    _launch(_compare, got, base, factors, inner, rows, found)
    return found != 0


def _launch(
    kernel: Any, ring: Tensor, base: Tensor, factors: Tensor, inner: int, rows: Tensor | None, result: Tensor
) -> None:
    count, n = len(factors), base.numel()
    assert base.is_contiguous()
    assert ring[0].is_contiguous()
    if not n or not count:
        return
    blocks = triton.cdiv(n, BLOCK)
    grid = (blocks, min(count, triton.cdiv(PROGRAMS, blocks)))
    length = n // len(base) if rows is not None else n
    assert rows is None or (rows.is_contiguous() and length % BLOCK == 0)
    kernel[grid](
        ring, base, factors, rows, result, n, count, ring.stride(0), length, factors.shape[1], inner,
        HAS_ROWS=rows is not None, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _block(n, middle, inner, BLOCK: tl.constexpr):
    """This program's elements [BLOCK], which of them exist, and the places of their factors."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    element = start + tl.arange(0, BLOCK)
    place = ((start // inner) % middle).to(tl.int32) + ((start % inner).to(tl.int32) + tl.arange(0, BLOCK)) // inner
    return element, element < n, place % middle


@triton.jit
def _place(i, element, rows, stride, length, n, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The places of the elements in multiple i."""
    if HAS_ROWS:
        r = tl.program_id(0).to(tl.int64) * BLOCK // length
        return tl.load(rows + i * (n // length) + r) * stride + (element - r * length)
    return (tl.zeros([], tl.int64) + i) * stride + element


@triton.jit
def _write(
    ring, base, factors, rows, result, n, count, stride, length, middle, inner,
    HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    element, exists, place = _block(n, middle, inner, BLOCK)
    value = tl.load(base + element, exists, other=0.0).to(tl.float32)
    for i in range(tl.program_id(1), count, tl.num_programs(1)):
        factor = tl.load(factors + i * middle + place)
        to = result + _place(i, element, rows, stride, length, n, HAS_ROWS, BLOCK)
        tl.store(to, (value * factor).to(result.dtype.element_ty), exists)


@triton.jit
def _compare(
    ring, base, factors, rows, result, n, count, stride, length, middle, inner,
    HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    element, exists, place = _block(n, middle, inner, BLOCK)
    value = tl.load(base + element, exists, other=0.0).to(tl.float32)
    for i in range(tl.program_id(1), count, tl.num_programs(1)):
        factor = tl.load(factors + i * middle + place)
        at = ring + _place(i, element, rows, stride, length, n, HAS_ROWS, BLOCK)
        got = tl.load(at, exists, other=0.0).to(tl.float32)
        want = (value * factor).to(ring.dtype.element_ty).to(tl.float32)
        tl.store(result + i + tl.zeros([BLOCK], tl.int32), 1, (got != want) & exists)
