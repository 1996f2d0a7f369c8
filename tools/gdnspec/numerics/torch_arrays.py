"""Arrays of drawn inputs as torch tensors and back, and large tensors a block at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnspec.inputs.array import Array
from gdnspec.sandbox.wire.arena import TORCH


def to_torch(array: Array) -> Tensor:
    """The same bits on the CPU; the array stays untouched."""
    if array.data.size == 0:
        return torch.empty(array.shape, dtype=TORCH[array.dtype])
    data = array.data if array.data.flags.writeable else array.data.copy()
    return torch.from_numpy(data).view(TORCH[array.dtype])


def to_array(x: Tensor) -> Array:
    """The same bits, from any device."""
    x = x.detach().cpu().contiguous()
    bits = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    return Array(str(x.dtype).removeprefix("torch."), bits.numpy())


BLOCK_BYTES = 1 << 28
SPARE_BYTES = 1 << 32


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same few rows of each, tensors of one length: what is made of a block is small beside the whole."""
    first = tensors[0]
    if first.dim() == 0 or len(first) == 0:
        yield tensors
        return
    step = max(1, BLOCK_BYTES * len(first) // max(1, first.nbytes))
    for start in range(0, len(first), step):
        yield tuple(x[start : start + step] for x in tensors)


def give_back(device: str) -> None:
    """Leaves to others what torch keeps of a GPU's memory for later, where it is gigabytes."""
    if device == "cuda" and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > SPARE_BYTES:
        torch.cuda.empty_cache()
