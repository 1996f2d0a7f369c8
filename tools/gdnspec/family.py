"""For the authors of a family: what reference/<family>/family.py and its neighbours may import of gdnspec."""

from typing import TYPE_CHECKING, Any

from gdnspec.inputs.array import CARRIER, Array, encode, to_bfloat16
from gdnspec.inputs.blanks import blanked, tail
from gdnspec.inputs.contract import (
    CallReader,
    Calls,
    DevicePainter,
    Emulated,
    Family,
    Foreign,
    FreshLines,
    NotExpressed,
    NotRecorded,
    Onnx,
    OnnxNode,
    OnnxWords,
    Painter,
    Published,
    RegimeError,
    Regrouped,
    SuiteError,
    Suites,
)
from gdnspec.inputs.layout import Floats, Gate, Layout, Sizes
from gdnspec.inputs.random import NORMAL_STD, Stream, off_grid, on_fine_grid, on_grid
from gdnspec.inputs.session_contract import MIXED, Memory, SessionWords, Source
from gdnspec.inputs.slots import slots
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.elements import Part, Scope, Tensor
from gdnspec.model.roles import is_state, sizes
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    from gdnspec.api.kernel import kernel
    from gdnspec.interop.meaning import Meaning
    from gdnspec.interop.text import Text
    from gdnspec.numerics.products import bfloat16_sum, rounded_products
    from gdnspec.numerics.torch_arrays import in_blocks, to_torch
    from gdnspec.registration import checks
    from gdnspec.registration.by_kernel import Asked
    from gdnspec.registration.gradients import Backward, Grads
    from gdnspec.registration.registry import register, register_pool

__all__ = [
    "CARRIER", "FLOATS", "MIXED", "NORMAL_STD", "Array", "Asked", "Backward", "CallReader", "Calls", "Definition",
    "DevicePainter", "Emulated", "Family", "Floats", "Foreign", "FreshLines", "Gate", "Grads", "Layout", "Meaning",
    "Memory", "NotExpressed", "NotRecorded", "Onnx", "OnnxNode", "OnnxWords", "Painter", "Part", "Published",
    "RegimeError", "Regrouped", "Scope", "SessionWords", "Sizes", "Source", "Stream", "SuiteError", "Suites", "Tensor",
    "Text", "Workload", "bfloat16_sum", "blanked", "checks", "encode", "in_blocks", "is_state", "kernel",
    "off_grid", "on_fine_grid", "on_grid", "register", "register_pool", "rounded_products", "sizes", "slots",
    "tail", "to_bfloat16", "to_torch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs torch is loaded when it is asked for: inputs are drawn without."""
    if name in ("bfloat16_sum", "rounded_products"):
        from gdnspec.numerics import products

        return getattr(products, name)
    if name in ("in_blocks", "to_torch"):
        from gdnspec.numerics import torch_arrays

        return getattr(torch_arrays, name)
    if name == "kernel":
        from gdnspec.api.kernel import kernel

        return kernel
    if name in ("Asked", "Backward", "Grads", "checks", "register", "register_pool"):
        from gdnspec.registration import by_kernel, checks, gradients, registry

        return {
            "Asked": by_kernel.Asked, "Backward": gradients.Backward, "Grads": gradients.Grads, "checks": checks,
            "register": registry.register, "register_pool": registry.register_pool,
        }[name]  # fmt: skip
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
