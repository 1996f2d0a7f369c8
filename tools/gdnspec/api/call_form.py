"""The arguments of a call, bound to the inputs of a definition and checked against it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gdnspec.api.dense import SERVED, unlike_dense
from gdnspec.catalog.definitions import Found, definitions
from gdnspec.choice.candidates import serving
from gdnspec.choice.sizes import sizes
from gdnspec.model import elements
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.elements import Scope
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.roles import pools


@dataclass(frozen=True)
class Form:
    """What a call looks like. `device`: None without tensors. `contiguous`: whether only pools have gaps."""

    scope: Scope
    device: torch.device | None
    contiguous: bool


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`, as definitions write it."""
    return str(dtype).removeprefix("torch.")


def defaults(definition: Definition, values: Mapping[str, Any], scope: Scope) -> list[tuple[int, Any]]:
    """The place and default of each switch and count that is left out; for other inputs a solution gets None. Raises
    `SpecError` if a default does not follow from the shapes."""
    found = []
    for at, tensor in enumerate(definition.inputs):
        counted = tensor.is_scalar and tensor.dtype in ("bool", *INTEGERS)
        if not counted or tensor.default is None or values.get(tensor.name) is not None:
            continue
        try:
            found.append((at, parse(tensor.default).evaluate(scope)))
        except ExpressionError:
            text = f"{definition.name}: give {tensor.name}; its default, {tensor.default}, does not follow from shapes"
            raise SpecError(text) from None
    return found


def bound(
    definition: Definition, args: Sequence[Any], named: Mapping[str, Any], partial: bool = False
) -> dict[str, Any]:
    """The values of the inputs by name, in the definition's order. Unless `partial`, all are there: None for an
    optional input that is left out. Raises `SpecError`."""
    names = [tensor.name for tensor in definition.inputs]
    takes = f"{definition.name} takes ({', '.join(names)})"
    if len(args) > len(names):
        raise SpecError(f"{len(args)} inputs by position: {takes}")
    given = dict(zip(names, args, strict=False))
    for name, value in named.items():
        if not isinstance(name, str):
            raise SpecError(f"the name {name!r} of an input is of type {type(name).__name__} instead of str: {takes}")
        if name not in names:
            raise SpecError(f"no input {name!r} ({nearest(name, names)}): {takes}")
        if name in given:
            raise SpecError(f"{name!r} is given by position and by name: {takes}")
        given[name] = value
    if not partial:
        optional = {tensor.name for tensor in definition.inputs if tensor.optional}
        missing = [name for name in names if given.get(name) is None and name not in optional]
        if missing:
            raise SpecError(f"no value for {', '.join(missing)}: {takes}")
    return {name: given.get(name) for name in names if name in given or not partial}


def form(found: Found, values: Mapping[str, Any], needed: Collection[str] = ()) -> Form:
    """Checks the types, devices, gaps and shapes of inputs by name. Raises `SpecError`."""
    tensors: dict[str, Tensor] = {}
    for tensor in found.definition.inputs:
        value = values.get(tensor.name)
        if value is None:
            continue
        if tensor.is_scalar:
            _check_scalar(found, tensor, value)
        elif isinstance(value, Tensor):
            _check_dense(found, tensor.name, value)
            tensors[tensor.name] = value
        else:
            raise SpecError(
                f"{found.definition.name}: {tensor.name} is of type {type(value).__name__} instead of a tensor"
            )
    device = _device(found, tensors)
    _check_types(found, tensors)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    names = [tensor.name for tensor in found.definition.inputs if tensor.is_scalar]
    scalars = {name: values[name] for name in names if values.get(name) is not None}
    numbers = {name: value for name, value in scalars.items() if type(value) is int}
    scope = sizes(found.definition, shapes, needed, numbers) | scalars
    whole = [_is_contiguous(found, name, value) for name, value in tensors.items()]
    return Form(scope, device, all(whole))


def _check_dense(found: Found, name: str, value: Tensor) -> None:
    what = unlike_dense(value)
    if what is not None:
        raise SpecError(f"{found.definition.name}: {name} is {what}: {SERVED} is served")


def _check_scalar(found: Found, tensor: elements.Tensor, value: object) -> None:
    kinds = {"bool": (bool,), "int32": (int,), "int64": (int,)}.get(tensor.dtype, (int, float))
    if not isinstance(value, kinds) or (isinstance(value, bool) and tensor.dtype != "bool"):
        wanted = {"bool": "a bool", "int32": "an int", "int64": "an int"}.get(tensor.dtype, "a number")
        said = f"{tensor.name} is of type {type(value).__name__}, but it takes {wanted}"
        raise SpecError(f"{found.definition.name}: {said}")


def _device(found: Found, tensors: Mapping[str, Tensor]) -> torch.device | None:
    devices: dict[torch.device, str] = {}
    for name, value in tensors.items():
        devices.setdefault(value.device, name)
    if len(devices) > 1:
        where = ", ".join(f"{name} is on {device}" for device, name in devices.items())
        raise SpecError(f"{found.definition.name} takes tensors on one device, but {where}: move them with .to(device)")
    return next(iter(devices), None)


def _check_types(found: Found, tensors: Mapping[str, Tensor]) -> None:
    definition = found.definition
    types = {name: dtype_name(value.dtype) for name, value in tensors.items()}
    wrong = [name for name, dtype in types.items() if dtype != definition.input(name).dtype]
    if not wrong:
        return
    said = ", ".join(f"{name} is {types[name]} instead of {definition.input(name).dtype}" for name in wrong)
    others = [
        name
        for name, other in definitions().items()
        if _signature(other.definition) == _signature(definition)
        and all(other.definition.input(given).dtype == dtype for given, dtype in types.items())
    ]
    if others:
        raise SpecError(f"{definition.name}: {said}; {others[0]} takes these types")
    first = f"{wrong[0]}.to(torch.{definition.input(wrong[0]).dtype})"
    more = " and so on" if len(wrong) > 1 else ""
    raise SpecError(f"{definition.name}: {said}: pass {first}{more}; {serving(found)}")


def _signature(definition: Definition) -> object:
    """What two definitions of one operator on different types share."""
    return definition.family, definition.conventions, [(tensor.name, tensor.shape) for tensor in definition.inputs]


def _is_contiguous(found: Found, name: str, value: Tensor) -> bool:
    """Whether a tensor counts as contiguous: a pool does, whatever lies between its slots. Raises `SpecError` if it has
    gaps where the definition allows none."""
    if value.is_contiguous():
        return True
    tensor = found.definition.input(name)
    gaps = tensor.spaced or 0
    expected = 1
    for at in range(value.dim() - 1, -1, -1):
        right = value.shape[at] == 1 or value.stride(at) == expected
        if not right and (at >= gaps or value.stride(at) < expected):
            where = "" if not gaps else f" beyond its first {'dimension' if gaps == 1 else f'{gaps} dimensions'}"
            raise SpecError(f"{found.definition.name}: {name} is not contiguous{where}: pass {name}.contiguous()")
        expected = max(expected, value.stride(at)) * value.shape[at]
    return tensor.mutates or name in pools(found.definition)
