"""Arrays of drawn inputs as torch tensors."""

import torch
from torch import Tensor

from gdnspec.inputs.array import Array
from gdnspec.protocol.arena import TORCH


def to_torch(array: Array) -> Tensor:
    """The same bits on the CPU; the array stays untouched."""
    if array.data.size == 0:
        return torch.empty(array.shape, dtype=TORCH[array.dtype])
    data = array.data if array.data.flags.writeable else array.data.copy()
    return torch.from_numpy(data).view(TORCH[array.dtype])
