"""What libraries compute in float32 before the rule, which `gdnspec.ops` takes as it comes."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def l2_normalised(x: Tensor) -> Tensor:
    """`x` over its L2 norm along the last dimension, with 1e-6 inside the root, in the type of `x`."""
    X = wide(x)
    return (X * torch.rsqrt((X * X).sum(dim=-1, keepdim=True) + 1e-6)).to(x.dtype)
