"""What the judge needs to know of the toy family."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gdnspec.family import (
    Array,
    Definition,
    Emulated,
    Family,
    RegimeError,
    Scope,
    Stream,
    Tensor,
    Workload,
    encode,
)

from .fresh import Lines


class Painter:
    """Normal numbers, of one size or of sizes that fall from row to row."""

    def __init__(self, definition: Definition, workload: Workload, scope: Scope) -> None:
        self.definition, self.workload, self.scope = definition, workload, scope

    def paint(self, tensor: Tensor) -> Array:
        if tensor.name == "starts":  # the judge works them out from the lengths of the line
            return Array(tensor.dtype, np.array(self.scope["starts"], dtype=np.int32))
        if tensor.name != "x":
            raise RegimeError(f"no generator for {tensor.name!r}")
        lines, width = self.definition.shape(tensor, self.scope)
        values = Stream(self.workload.seed or 0, tensor.name).normal(lines, width)
        if self.workload.regime == "falling":
            values = values * 100.0 ** -(np.arange(lines) % 4)[:, None]
        return Array(tensor.dtype, encode(values, tensor.dtype))


def problems(definition: Definition, arrays: Mapping[str, Array], workload: Workload, scope: Scope) -> Iterator[str]:
    """A decay above 1 lets sums grow."""
    if abs(float(workload.scalars.get("decay", 0.5))) > 1:
        yield "with a decay above 1 the sums are not bounded"


def emulators(call: Emulated) -> Iterator[tuple[str, Any]]:
    """Float32 arithmetic in the order of either derivation."""
    yield "element_by_element", call.oracle(**call.arguments)
    yield "by_matrix", call.second(**call.arguments)


def ops() -> Mapping[str, Callable[..., Any]]:
    """The operators as functions: the module needs torch."""
    from .ops import toy_running_sum

    return {"toy_running_sum": toy_running_sum}


FAMILY = Family(Painter, problems, emulators, fresh=Lines, ops=ops)
