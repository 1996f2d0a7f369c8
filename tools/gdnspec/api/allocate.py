"""Allocates the outputs of a call."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gdnspec.api.call_form import Form
from gdnspec.api.words import integer
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.values import whole

LARGEST = (1 << 63) - 1  # size of an axis

Make = Callable[[Sequence[Any]], tuple[Tensor, ...]]


def outputs_of(definition: Definition, looks: Form) -> Make:
    """A function of all inputs that allocates the outputs, in the definition's order.

    Raises `SpecError` if their sizes do not follow from the call.
    """
    scope = looks.scope
    unknown = {axis for axis in output_axes(definition) if axis not in scope}
    if unknown:
        return lambda inputs: _empty(definition, _with_values(definition, scope, unknown, inputs), looks.device)
    shaped = [_allocator(x, looks.device) for x in _empty(definition, scope, torch.device("meta"))]
    if len(shaped) == 1:
        (only,) = shaped
        return lambda inputs: (only(),)
    return lambda inputs: tuple([make() for make in shaped])


def with_axes(definition: Definition, scope: Scope, axes: Mapping[str, int]) -> Scope:
    """The scope with sizes that the caller has named, which otherwise the values of an input say. Raises `SpecError` if
    they are no sizes of the definition, or contradict the call."""
    if not isinstance(axes, Mapping):
        raise SpecError(f"axes is of type {type(axes).__name__} instead of a dict of sizes by name")
    known = {axis.name for axis in definition.axes}
    for axis, size in axes.items():
        if axis not in known:
            raise SpecError(f"{definition.name} has no axis {axis!r} ({nearest(str(axis), known)})")
        integer(f"axes: {axis}", size, 0, LARGEST)
        if scope.get(axis, size) != size:
            raise SpecError(f"{definition.name}: axes say {axis} = {size}, and the inputs {scope[axis]}")
    return {**scope, **axes}


def output_axes(definition: Definition) -> frozenset[str]:
    """The axes that the sizes of outputs are made of."""
    sizes = [str(size) for tensor in definition.outputs for size in tensor.shape or []]
    return frozenset[str]().union(*(parse(size).names for size in sizes))


def _allocator(like: Tensor, device: torch.device | None) -> Callable[[], Tensor]:
    """Makes tensors like this one. On the current GPU by the function of torch.compile, in a third of the host time."""
    shape, stride, dtype = tuple(like.shape), like.stride(), like.dtype
    if device is not None and device.type == "cuda":
        guards: Any = torch._C._dynamo.guards
        return partial(guards._empty_strided_cuda, shape, stride, dtype)
    return lambda: torch.empty(shape, dtype=dtype, device=device)


def _empty(definition: Definition, scope: Scope, device: torch.device | None) -> tuple[Tensor, ...]:
    try:
        return tuple(
            torch.empty(definition.shape(t, scope), dtype=getattr(torch, t.dtype), device=device)
            for t in definition.outputs
        )
    except ExpressionError as error:
        raise SpecError(f"{definition.name}: the sizes of its outputs do not follow from its inputs: {error}") from None


def _with_values(definition: Definition, scope: Scope, unknown: set[str], inputs: Sequence[Any]) -> Scope:
    """The scope with axes that only values say, such as the last of the starts. Reading them waits for the device."""
    scope, named = dict(scope), dict(zip((t.name for t in definition.inputs), inputs, strict=True))
    for constraint in definition.constraints:
        axis, _, text = constraint.expression.partition(" == ")
        if axis not in unknown:
            continue
        read = [t.name for t in definition.inputs if t.is_index and t.name in parse(text).names]
        scope[axis] = whole(parse(text), scope | {name: named[name].flatten().tolist() for name in read})
    return scope
