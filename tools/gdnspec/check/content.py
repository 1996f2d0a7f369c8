"""The content of one call."""

from dataclasses import dataclass

from torch import Tensor

from gdnspec.inputs.materialise import Inputs
from gdnspec.model.elements import Scope
from gdnspec.numerics.torch_arrays import to_torch


@dataclass(frozen=True, eq=False)
class Content:
    """The inputs of one call: tensors on the device, scalars, and the axes that they bind."""

    tensors: dict[str, Tensor]
    scalars: dict[str, float | bool | None]
    scope: Scope

    @staticmethod
    def of(inputs: Inputs, device: str) -> "Content":
        tensors = {name: to_torch(array).to(device) for name, array in inputs.tensors.items()}
        return Content(tensors, inputs.scalars, inputs.scope)
