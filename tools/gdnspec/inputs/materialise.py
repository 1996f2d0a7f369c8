"""From a workload to everything that one call needs, with its hash."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from gdnspec.catalog.definitions import Found, presets
from gdnspec.inputs import validity
from gdnspec.inputs.array import Array
from gdnspec.inputs.draw import RegimeError, draw
from gdnspec.inputs.files import read_inputs, shape_problems
from gdnspec.model.definition import Scope
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import Expression
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
    result = hashlib.sha256()
    for name, array in tensors.items():
        result.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        result.update(np.ascontiguousarray(array.data).view(np.uint8).data if array.data.size else b"")
    return result.hexdigest()


def materialise(found: Found, workload: Workload) -> Inputs:
    """Draws or reads the inputs; raises `InvalidWorkload` with the reason where they may not be used."""
    definition = found.definition
    scope = workload.scope(definition, presets()[workload.preset])
    try:
        if workload.tensors is not None:
            path = found.folder / workload.tensors
            tensors = read_inputs(path, definition, workload.omit)
            for name, array in tensors.items():
                if definition.input(name).is_index:
                    scope[name] = [int(x) for x in array.data]
            broken = [why for _, _, why in definition.broken(scope)]
            wrong = shape_problems(path, tensors, definition, scope)
            if broken or wrong:
                raise InvalidWorkload("; ".join([*broken, *map(str, wrong)]))
        else:
            tensors = draw(definition, workload, scope)
    except (SpecError, RegimeError) as error:
        raise InvalidWorkload(str(error)) from None
    sha256 = digest(tensors)
    if workload.sha256 is not None and workload.sha256 != sha256:
        raise InvalidWorkload(f"the inputs have sha256 {sha256[:12]}.., the line says {workload.sha256[:12]}..")
    for problem in validity.problems(definition, tensors):
        raise InvalidWorkload(problem)
    scalars: dict[str, float | bool | None] = {}
    absent = workload.omitted(definition)
    for tensor in definition.inputs:
        if tensor.is_scalar:
            value = workload.scalars.get(tensor.name)
            if value is None and tensor.name not in absent:
                value = Expression(tensor.default or "0").evaluate(scope)
            scalars[tensor.name] = value
    return Inputs(tensors, scalars, scope, sha256)
