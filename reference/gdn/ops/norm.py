"""The gated norm after the rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..layer import gated_rms_norm
from . import checks
from .registry import register

NAME = "gated_rms_norm"


def plain(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
    fake(x, z, weight)
    return gated_rms_norm(x, z, weight, eps).contiguous()


def fake(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    checks.tensors(NAME, {"x": x, "z": z, "weight": weight}, {})
    if x.dim() < 2:
        raise ValueError(f"{NAME}: x has the shape {list(x.shape)}: [.., V] with at least two axes is served")
    checks.shape(NAME, "z", z, tuple(x.shape), "the shape of x")
    checks.shape(NAME, "weight", weight, (x.shape[-1],), "[V]")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def asked(
    x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None
) -> tuple[str, tuple[Any, ...], Callable[..., Any] | None]:
    """The kernel takes rows of heads."""
    if x.dim() == 3:
        return "gdn_gated_rms_norm", (x, z, weight, eps), None
    size = x.shape
    rows = (-1, size[-2] if len(size) > 3 else 1, size[-1])
    return "gdn_gated_rms_norm", (x.reshape(rows), z.reshape(rows), weight, eps), lambda output: output.view(size)


OPERATOR = register(NAME, "Tensor x, Tensor z, Tensor weight, float? eps=None", "Tensor", plain, fake, asked)
