"""From a workload to everything that one call needs, with its hash."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.inputs import raw, validity
from gdnspec.inputs.array import CARRIER, Array
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.errors import Problem, RegimeError, SpecError
from gdnspec.model.expression import parse
from gdnspec.model.workload import Workload


class InvalidWorkload(Exception):
    """Inputs that cannot be judged on: INVALID_WORKLOAD."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """One call. `tensors` in the definition's order, without the omitted; `scalars` with None for the absent."""

    tensors: dict[str, Array]
    scalars: dict[str, float | bool | None]
    scope: Scope
    sha256: str

    def key(self) -> str:
        """Names the call by content: tensors, what is omitted, and scalars."""
        return hashlib.sha256(json.dumps([self.sha256, self.scalars], sort_keys=True).encode()).hexdigest()


def digest(tensors: dict[str, Array]) -> str:
    """sha256 over names, types, shapes and bytes."""
    return raw.digest(
        (name, array.dtype, array.shape, np.ascontiguousarray(array.data).reshape(-1).view(np.uint8).data)
        for name, array in tensors.items()
    )


def materialise(found: Found, workload: Workload) -> Inputs:
    """Draws or reads the inputs; raises `InvalidWorkload` with the reason where they may not be used."""
    definition = found.definition
    refuse_drawn(workload)
    scope = workload.scope(definition, preset_of(found, workload))
    try:
        tensors = draw(found, workload, scope) if workload.tensors is None else _read(found, workload, scope)
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None
    sha256 = digest(tensors)
    changed = workload.sha256 is not None and workload.sha256 != sha256
    # A file is held to its hash first. Of a generator that draws no number the other hash would not say what is wrong.
    if changed and workload.tensors is not None:
        raise InvalidWorkload(_other_hash(sha256, workload))
    for problem in validity.problems(found, tensors, workload, scope):
        raise InvalidWorkload(problem)
    if changed:
        raise InvalidWorkload(_other_hash(sha256, workload))
    return Inputs(tensors, scalars(found, workload, scope), scope, sha256)


def _other_hash(sha256: str, workload: Workload) -> str:
    return f"the inputs have sha256 {sha256[:12]}.., the line says {str(workload.sha256)[:12]}.."


def draw(found: Found, workload: Workload, scope: Scope) -> dict[str, Array]:
    """Every input tensor that the line does not omit, by name, as the family draws it. Scalars are not drawn."""
    return {tensor.name: array for tensor, array in painted(found, workload, scope)}


def painted(found: Found, workload: Workload, scope: Scope) -> Iterator[tuple[Tensor, Array]]:
    """The same one at a time. Raises `RegimeError`, and `SpecError` where the family's code is wrong."""
    definition = found.definition
    with running(found.family, f"inputs of {definition.name} are drawn"):
        painter = judged(found.family).painter(definition, workload, scope)
        for tensor in definition.inputs:
            if not tensor.is_scalar and tensor.name not in workload.omit:
                yield tensor, _held(found, tensor, painter.paint(tensor), scope)


def _held(found: Found, tensor: Tensor, array: object, scope: Scope) -> Array:
    """What was drawn, seen to be what the definition says. Raises `SpecError`."""
    if not isinstance(array, Array):
        has = f"a {type(array).__name__}, not a gdnspec.family.Array"
    elif array.dtype in CARRIER and array.data.dtype != CARRIER[array.dtype]:
        has = f"{array.dtype} held in {array.data.dtype}, not in {np.dtype(CARRIER[array.dtype])}"
    else:
        shape = found.definition.shape(tensor, scope)
        if (array.dtype, tuple(array.shape)) == (tensor.dtype, shape):
            return array
        has = f"{array.dtype} {list(array.shape)}, not as {tensor.dtype} {list(shape)}"
    message = f"draws {tensor.name} of {found.definition.name} as {has}"
    raise SpecError([Problem(found.family.reference / FAMILY_CODE, message)])


def refuse_drawn(workload: Workload) -> None:
    """Raises `InvalidWorkload` for a line whose tensors only a check draws."""
    if workload.drawn is not None:
        raise InvalidWorkload("its inputs are drawn on the device of a check, and are the same on no other machine")


def _read(found: Found, workload: Workload, scope: Scope) -> dict[str, Array]:
    path = found.tensors(str(workload.tensors))
    try:
        tensors = raw.read_inputs(path, found.definition, workload.omit)
        raw.hold_to(path, tensors, found.definition, scope)
    except SpecError as error:
        raise InvalidWorkload(str(error)) from None
    return {
        name: Array(tensor.dtype, np.frombuffer(tensor.data, dtype=CARRIER[tensor.dtype]).reshape(tensor.shape))
        for name, tensor in tensors.items()
    }


def scalars(found: Found, workload: Workload, scope: Scope) -> dict[str, float | bool | None]:
    """The values of all scalars of a call, None for the absent."""
    values: dict[str, float | bool | None] = {}
    absent = workload.omitted(found.definition)
    for tensor in found.definition.inputs:
        if tensor.is_scalar:
            value = workload.scalars.get(tensor.name)
            if value is None and tensor.name not in absent:
                value = parse(tensor.default or "0").evaluate(scope)
            # 1 of a float is 1.0, however the line writes it.
            values[tensor.name] = float(value) if value is not None and tensor.dtype in FLOATS else value
    return values
