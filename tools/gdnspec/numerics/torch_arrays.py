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
    carried = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}.get(x.dtype)
    bits = x if carried is None else x.view(carried)
    return Array(str(x.dtype).removeprefix("torch."), bits.numpy())


def movable(x: Tensor) -> Tensor:
    """The same elements in a type that every PyTorch can move, on every device: floats of one byte as their bits."""
    return x.view(torch.uint8) if x.is_floating_point() and x.element_size() == 1 else x


def comparable(x: Tensor) -> Tensor:
    """The same values in a type that every PyTorch can compare: floats of one byte as float32."""
    return x.float() if x.is_floating_point() and x.element_size() == 1 else x


def times(x: Tensor, factor: Tensor) -> Tensor:
    """The product in the type of `x`, also where PyTorch has none: it does not multiply floats of one byte."""
    if x.is_floating_point() and x.element_size() == 1:
        return (x.float() * factor.float()).to(x.dtype)
    return x * factor.to(x.dtype)


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
