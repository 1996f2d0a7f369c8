"""A program for sixteen rows of running sums, or for one stretch."""

import triton
import triton.language as tl

ROWS = 16


@triton.jit
def running_sum_kernel(x, y, lines, width, decay, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], dtype=tl.float32)
    for i in range(width):
        total = decay * total + tl.load(x + row * width + i, mask=row < lines, other=0.0).to(tl.float32)
        tl.store(y + row * width + i, total.to(tl.bfloat16), mask=row < lines)


@triton.jit
def unit_stretch_kernel(x, starts, y, width, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    start, stop = tl.load(starts + tl.program_id(0)), tl.load(starts + tl.program_id(0) + 1)
    column = tl.arange(0, COLUMNS)[None, :]
    squares = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    at = start
    while at < stop:
        point = at + tl.arange(0, ROWS)[:, None]
        block = tl.load(x + point * width + column, mask=(point < stop) & (column < width), other=0.0)
        squares += block * block
        at += ROWS
    size = tl.sqrt(tl.sum(squares) / ((stop - start) * width) + eps)
    at = start
    while at < stop:
        point = at + tl.arange(0, ROWS)[:, None]
        inside = (point < stop) & (column < width)
        tl.store(y + point * width + column, tl.load(x + point * width + column, mask=inside) / size, mask=inside)
        at += ROWS


def running_sum(x, decay, y):
    lines, width = x.shape
    if lines:
        grid = (triton.cdiv(lines, ROWS),)
        running_sum_kernel[grid](x, y, lines, width, 0.5 if decay is None else decay, ROWS)


def unit_stretch(x, starts, eps, y):
    width = x.shape[1]
    if len(x):
        columns = triton.next_power_of_2(width)
        unit_stretch_kernel[(len(starts) - 1,)](x, starts, y, width, 1e-6 if eps is None else eps, ROWS, columns)
