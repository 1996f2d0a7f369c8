"""Turns the inputs of a call into keyword arguments for a function of torch tensors."""

from typing import Any

import torch

from gdnspec.catalog.definitions import Found
from gdnspec.inputs.materialise import Inputs
from gdnspec.numerics.torch_arrays import to_torch


def arguments(found: Found, inputs: Inputs, device: str, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The inputs by name, in the definition's order; None for omitted ones. Floats and codes are as stored, or all in
    `dtype`."""
    result: dict[str, Any] = {}
    for tensor in found.definition.inputs:
        if tensor.is_scalar:
            result[tensor.name] = inputs.scalars[tensor.name]
        elif tensor.name in inputs.tensors:
            value = to_torch(inputs.tensors[tensor.name]).to(device)
            result[tensor.name] = value.to(dtype) if dtype and tensor.is_drawn else value
        else:
            result[tensor.name] = None
    return result
