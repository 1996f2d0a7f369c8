"""The gated norm after the rule."""

from typing import Any

import torch
from gdnspec.family import Asked, Backward, Grads, checks, register
from torch import Tensor

from ..layer import gated_rms_norm

NAME = "gated_rms_norm"


def plain(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
    fake(x, z, weight, eps)
    return gated_rms_norm(x, z, weight, eps).contiguous()


def fake(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    checks.tensors(NAME, {"x": x, "z": z, "weight": weight}, {})
    if x.dim() < 2:
        raise ValueError(f"{NAME}: x has the shape {list(x.shape)}: [.., V] with at least two axes is served")
    checks.shape(NAME, "z", z, tuple(x.shape), "the shape of x")
    checks.shape(NAME, "weight", weight, (x.shape[-1],), "[V]")
    if eps is not None:
        torch._check_value(eps >= 0, lambda: f"{NAME}: eps={eps}: None, 0 and positive numbers are served")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def asked(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Asked:
    if x.dim() == 3:
        return "gdn_gated_rms_norm", (x, z, weight, eps), None
    size, rows = x.shape, _rows(x)
    return "gdn_gated_rms_norm", (x.reshape(rows), z.reshape(rows), weight, eps), lambda output: output.view(size)


def _rows(x: Tensor) -> tuple[int, int, int]:
    """The kernel takes rows of heads."""
    return -1, x.shape[-2] if x.dim() > 2 else 1, x.shape[-1]


def serves(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> bool:
    return x.dtype == z.dtype == weight.dtype == torch.bfloat16 and x.numel() > 0


def backward_asked(grads: Grads, args: tuple[Any, ...]) -> Asked:
    (x, z, weight, eps), (do,) = args, grads
    assert do is not None
    rows = _rows(x)
    return "gdn_gated_rms_norm_backward", (x.reshape(rows), z.reshape(rows), weight, eps, do.reshape(rows)), None


OPERATOR = register(
    NAME, "Tensor x, Tensor z, Tensor weight, float? eps=None", "Tensor", plain, fake, asked,
    Backward(serves, backward_asked),
)  # fmt: skip
