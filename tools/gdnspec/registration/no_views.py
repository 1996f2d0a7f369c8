"""Outputs of operators that are no views."""

from collections.abc import Callable
from typing import Any

import torch


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose outputs are no views, as those of PyTorch's operators: whoever has them may write to them.

    Inside it nothing has a gradient.
    """

    def computed(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return function(*args)

    return computed
