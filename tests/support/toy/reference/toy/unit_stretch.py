"""Stretches of one size, one after the other: the executable specification."""

import torch
from torch import Tensor


def unit_stretch(x: Tensor, starts: Tensor, eps: float | None) -> Tensor:
    """x [points, width], starts [stretches + 1], eps 1e-6 where absent. Returns y [points, width]."""
    eps = 1e-6 if eps is None else eps
    y = torch.empty_like(x)
    for n in range(len(starts) - 1):
        start, stop = int(starts[n]), int(starts[n + 1])
        stretch = x[start:stop]
        y[start:stop] = stretch / (stretch.square().mean() + eps).sqrt()
    return y
