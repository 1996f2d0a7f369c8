"""Draws inputs on the device of a check: gigabytes per second. The generator on the host would take minutes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.check.call import Content
from gdnspec.inputs.materialise import InvalidWorkload, scalars
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.errors import Problem, RegimeError, SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.torch_arrays import in_blocks
from gdnspec.sandbox.wire.arena import TORCH


def draw(found: Found, workload: Workload, device: str) -> Content:
    """The content of a workload with `"drawn": "device"`. Raises `InvalidWorkload` if its inputs are not valid."""
    family, definition = judged(found.family), found.definition
    if family.device_painter is None or family.device_problems is None:
        raise InvalidWorkload(f"the family {found.family.name} cannot draw inputs on a device: leave out `drawn`")
    scope = workload.scope(definition, preset_of(found, workload))
    try:
        with running(found.family, f"inputs of {definition.name} are drawn on a device"):
            painter = family.device_painter(definition, workload, scope, device)
            wanted = [t for t in definition.inputs if not t.is_scalar and t.name not in workload.omit]
            tensors = {t.name: _held(found, t, painter.paint(t), scope) for t in wanted}
            unbounded = list(family.device_problems(definition, tensors, workload))
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None
    for problem in [*problems(definition, tensors), *unbounded]:
        raise InvalidWorkload(problem)
    return Content(tensors, scalars(found, workload, scope), scope)


def _held(found: Found, model: TensorModel, x: Tensor, scope: Scope) -> Tensor:
    """`x`, if it has the type and shape of the definition. Raises `SpecError`."""
    has, wanted = (x.dtype, tuple(x.shape)), (TORCH[model.dtype], found.definition.shape(model, scope))
    if has == wanted:
        return x
    message = f"draws {model.name} of {found.definition.name} on a device as {has[0]} {list(has[1])}"
    raise SpecError([Problem(found.family.reference / FAMILY_CODE, f"{message}, not as {wanted[0]} {list(wanted[1])}")])


def problems(definition: Definition, tensors: dict[str, Tensor]) -> Iterator[str]:
    """The drawn inputs with values outside their domain, described. Works block by block."""
    for model in definition.inputs:
        if model.name in tensors and tensors[model.name].is_floating_point():
            yield from _values(model, tensors[model.name])


def _values(model: TensorModel, x: Tensor) -> Iterator[str]:
    low, high = model.domain or (None, None)
    downwards = model.domain is not None and low is None
    for (part,) in in_blocks(x):
        block = part.float() if part.element_size() == 1 else part  # PyTorch finds no minimum of such floats
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
