"""Products and triangular systems in float64 whose sums have one order, so that every processor finds the same bits.

Where keys are alike, terms cancel: what float64 rounds off is 1e-11 of the result, and which error it is depends on the
order in which a library sums, and so on the processor. Rounded to float32, one element in a few thousand differs in
its last bit. A strict emulator's error was twice as large on one processor as on another.
"""

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, the terms of each sum added from first to last. `a`: [.., n, k], `b`: [.., k, m]."""
    total = a[..., 0, None] * b[..., 0, None, :]
    for k in range(1, a.shape[-1]):
        total += a[..., k, None] * b[..., k, None, :]
    return total


def solve_unit_lower(A: Tensor, right: Tensor) -> Tensor:
    """X with (I + strict_lower(A)) X = right, row by row from above. `A`: [.., n, n], `right`: [.., n, m]."""
    found = torch.zeros_like(A[..., :1]) + right  # a new tensor, with the leading dimensions of both
    for row in range(A.shape[-1] - 1):
        found[..., row + 1 :, :] -= A[..., row + 1 :, row, None] * found[..., row, None, :]
    return found
