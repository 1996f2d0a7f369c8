"""Converts between arrays and torch tensors, and walks through large tensors in blocks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnspec.inputs.array import Array
from gdnspec.sandbox.wire.arena import TORCH


def to_torch(array: Array) -> Tensor:
    """A CPU tensor with the same bits. The array is not modified."""
    if array.data.size == 0:
        return torch.empty(array.shape, dtype=TORCH[array.dtype])
    data = array.data if array.data.flags.writeable else array.data.copy()
    return torch.from_numpy(data).view(TORCH[array.dtype])


def to_array(x: Tensor) -> Array:
    """An array with the same bits, from a tensor on any device."""
    x = x.detach().cpu().contiguous()
    bits = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    return Array(str(x.dtype).removeprefix("torch."), bits.numpy())


BLOCK_BYTES = 1 << 28
SPARE_BYTES = 1 << 32


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of each tensor, a few at a time: intermediate values of a block are small. All have one length."""
    first = tensors[0]
    if first.dim() == 0 or len(first) == 0:
        yield tensors
        return
    step = max(1, BLOCK_BYTES * len(first) // max(1, first.nbytes))
    for start in range(0, len(first), step):
        yield tuple(x[start : start + step] for x in tensors)


def give_back(device: str) -> None:
    """Frees GPU memory that torch caches, if it is gigabytes, so that other processes can use it."""
    if device == "cuda" and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > SPARE_BYTES:
        torch.cuda.empty_cache()
