"""Inputs drawn on the device of a check: gigabytes in a second, where the generator of files would take minutes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnspec.build.reference import judged
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.check.call import Content
from gdnspec.inputs.contract import RegimeError
from gdnspec.inputs.materialise import InvalidWorkload, scalars
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.workload import Workload
from gdnspec.numerics.torch_arrays import in_blocks


def draw(found: Found, workload: Workload, device: str) -> Content:
    """The call of a line that says `"drawn": "device"`. Raises `InvalidWorkload` where its inputs may not be used."""
    family, definition = judged(found.family), found.definition
    if family.device_painter is None or family.device_problems is None:
        raise InvalidWorkload(f"the family {found.family.name} draws nothing on a device")
    scope = workload.scope(definition, preset_of(found, workload))
    try:
        painter = family.device_painter(definition, workload, scope, device)
        wanted = [t for t in definition.inputs if not t.is_scalar and t.name not in workload.omit]
        tensors = {tensor.name: painter.paint(tensor) for tensor in wanted}
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None
    for problem in problems(definition, tensors):
        raise InvalidWorkload(problem)
    for problem in family.device_problems(definition, tensors, workload):
        raise InvalidWorkload(problem)
    return Content(tensors, scalars(found, workload, scope), scope)


def problems(definition: Definition, tensors: dict[str, Tensor]) -> Iterator[str]:
    """What of drawn inputs lies outside of its domain, in words. A block at a time."""
    for model in definition.inputs:
        if model.name in tensors and tensors[model.name].is_floating_point():
            yield from _values(model, tensors[model.name])


def _values(model: TensorModel, x: Tensor) -> Iterator[str]:
    low, high = model.domain or (None, None)
    downwards = model.domain is not None and low is None
    for (block,) in in_blocks(x):
        legal = torch.isfinite(block) | (block == -torch.inf) if downwards else torch.isfinite(block)
        if not bool(legal.all()):
            yield f"{model.name} has values that are not finite"
            return
        if block.numel() and low is not None and float(block.min()) < low:
            yield f"{model.name} falls to {float(block.min())}, below {low}"
            return
        if block.numel() and high is not None and float(block.max()) > high:
            yield f"{model.name} rises to {float(block.max())}, above {high}"
            return
