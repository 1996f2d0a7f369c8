"""For the authors of a family: what reference/<family>/family.py and its neighbours may import of gdnspec."""

from typing import TYPE_CHECKING, Any

from gdnspec.inputs.array import CARRIER, Array, encode, to_bfloat16
from gdnspec.inputs.contract import DevicePainter, Emulated, Family, Painter, RegimeError
from gdnspec.inputs.layout import Floats, Gate, Layout, Sizes
from gdnspec.inputs.random import NORMAL_STD, Stream, off_grid, on_fine_grid, on_grid
from gdnspec.model import chunks
from gdnspec.model.checkpoints import INTERVAL, keeps_checkpoints
from gdnspec.model.definition import Definition, Scope, Tensor, state_heads
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    from gdnspec.numerics.products import bfloat16_sum, rounded_products
    from gdnspec.numerics.torch_arrays import in_blocks, to_torch

__all__ = [
    "CARRIER", "INTERVAL", "NORMAL_STD", "Array", "Definition", "DevicePainter", "Emulated", "Family", "Floats", "Gate",
    "Layout", "Painter", "RegimeError", "Scope", "Sizes", "Stream", "Tensor", "Workload", "bfloat16_sum", "chunks",
    "encode", "in_blocks", "keeps_checkpoints", "off_grid", "on_fine_grid", "on_grid", "rounded_products",
    "state_heads", "to_bfloat16", "to_torch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs torch is loaded when it is asked for: inputs are drawn without."""
    if name in ("bfloat16_sum", "rounded_products"):
        from gdnspec.numerics import products

        return getattr(products, name)
    if name in ("in_blocks", "to_torch"):
        from gdnspec.numerics import torch_arrays

        return getattr(torch_arrays, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
