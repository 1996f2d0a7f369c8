"""The running sum as a function: what `gdnspec.ops` has of the toy family. It is also `torch.ops.toy.running_sum`."""

import torch
from torch import Tensor

from . import by_matrix

LIBRARY = torch.library.Library("toy", "FRAGMENT")
LIBRARY.define("running_sum(Tensor x, float? decay=None) -> Tensor")
LIBRARY.impl("running_sum", lambda x, decay=None: by_matrix.running_sum(x, decay), "CompositeImplicitAutograd")


def toy_running_sum(x: Tensor, decay: float | None = None) -> Tensor:
    """x [lines, width], decay 0.5 where absent. Returns the running sums along each line."""
    return torch.ops.toy.running_sum(x, decay)
