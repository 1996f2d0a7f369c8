"""What kernels read: tensors whose elements an address and strides say."""

import torch
from torch import Tensor

SERVED = "a dense tensor"


def unlike_dense(x: Tensor) -> str | None:
    """What a tensor is instead of a dense one: `a tensor of the layout sparse_coo`; None if it is dense."""
    if x.is_nested:
        return "a nested tensor"
    if x.is_quantized:
        return "a quantised tensor"
    if x.is_neg():  # its elements are those in memory with the sign turned
        return "a negative view"
    if x.layout != torch.strided:
        return f"a tensor of the layout {str(x.layout).removeprefix('torch.')}"
    return None
