"""Calls the CUDA kernel that gdnspec chooses for a definition, shapes and types."""

from collections.abc import Callable
from typing import Any

from gdnspec import family
from torch import Tensor

MOST = 4096  # lengths differ from call to call: so many forms of calls are known


def by_kernel(check: Callable[..., Any], asked: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's function for CUDA tensors.

    `asked` returns the definition that says what a call means, its inputs in order, and what becomes of the outputs, or
    None. `check` raises an error for a call that is not served. It is asked once for calls of one form, and so is the
    choice of the kernel. Neither reads a value, so that a CUDA graph may record the call.
    """
    bound: dict[Any, Callable[..., Any]] = {}

    def served(*args: Any) -> Any:
        form = (
            args[0].device,
            *[(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x for x in args],
        )
        call = bound.get(form)
        if call is None:
            check(*args)
            definition, inputs, _ = asked(*args)
            if len(bound) >= MOST:
                bound.clear()
            call = bound[form] = family.kernel(definition, inputs).bind(*inputs)
        _, inputs, finish = asked(*args)
        outputs = call(*inputs)
        return outputs if finish is None else finish(outputs)

    return served
