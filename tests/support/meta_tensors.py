"""Tensors that have shape and type alone, for kernels that are only compiled."""

import torch


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
