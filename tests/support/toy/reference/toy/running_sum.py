"""Running sums with decay, element by element: the executable specification."""

import torch
from torch import Tensor


def running_sum(x: Tensor, decay: float | None) -> Tensor:
    """x [lines, width], decay 0.5 where absent. Returns y [lines, width]."""
    decay = 0.5 if decay is None else decay
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y, total = torch.empty_like(wide), torch.zeros_like(wide[:, 0])
    for i in range(x.shape[1]):
        total = decay * total + wide[:, i]
        y[:, i] = total
    return y.to(x.dtype)
