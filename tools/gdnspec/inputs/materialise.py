"""Turns a workload into the inputs of one call, with their hash."""

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
    """The inputs cannot be used to judge a solution: status INVALID_WORKLOAD."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of one call. `tensors`: in the definition's order, without omitted ones. `scalars`: None if absent."""

    tensors: dict[str, Array]
    scalars: dict[str, float | bool | None]
    scope: Scope
    sha256: str

    def key(self) -> str:
        """A hash of the content: tensors, omitted inputs, and scalars."""
        return hashlib.sha256(json.dumps([self.sha256, self.scalars], sort_keys=True).encode()).hexdigest()


def digest(tensors: dict[str, Array]) -> str:
    """sha256 over names, types, shapes and bytes."""
    return raw.digest(
        (name, array.dtype, array.shape, np.ascontiguousarray(array.data).reshape(-1).view(np.uint8).data)
        for name, array in tensors.items()
    )


def materialise(found: Found, workload: Workload) -> Inputs:
    """Draws or reads the inputs. Raises `InvalidWorkload` with the reason if they may not be used."""
    definition = found.definition
    refuse_drawn(workload)
    scope = workload.scope(definition, preset_of(found, workload))
    try:
        tensors = draw(found, workload, scope) if workload.tensors is None else _read(found, workload, scope)
    except RegimeError as error:
        raise InvalidWorkload(str(error)) from None
    sha256 = digest(tensors)
    changed = workload.sha256 is not None and workload.sha256 != sha256
    # For a file, compare the hash first. For a generator, other problems come first: they say more than a wrong hash.
    if changed and workload.tensors is not None:
        raise InvalidWorkload(_other_hash(sha256, workload))
    for problem in validity.problems(found, tensors, workload, scope):
        raise InvalidWorkload(problem)
    if changed:
        raise InvalidWorkload(_other_hash(sha256, workload))
    return Inputs(tensors, scalars(found, workload, scope), scope, sha256)


def _other_hash(sha256: str, workload: Workload) -> str:
    """If the line or the code that draws it has changed on purpose, its budget is no longer its own either."""
    said = f"the inputs have sha256 {sha256[:12]}.., but the workload says {str(workload.sha256)[:12]}.."
    return f"{said} (if they are meant to differ, take sha256 out of its line: gdnspec workloads freeze writes it)"


def draw(found: Found, workload: Workload, scope: Scope) -> dict[str, Array]:
    """All input tensors that the line does not omit, by name, as the family draws them. Scalars are not drawn."""
    return {tensor.name: array for tensor, array in painted(found, workload, scope)}


def painted(found: Found, workload: Workload, scope: Scope) -> Iterator[tuple[Tensor, Array]]:
    """Like `draw`, one tensor at a time. Raises `RegimeError`, and `SpecError` if the family's code is wrong."""
    definition = found.definition
    with running(found.family, f"drawing the inputs of {definition.name}"):
        painter = judged(found.family).painter(definition, workload, scope)
        for tensor in definition.inputs:
            if not tensor.is_scalar and tensor.name not in workload.omit:
                yield tensor, _held(found, tensor, painter.paint(tensor), scope)


def _held(found: Found, tensor: Tensor, array: object, scope: Scope) -> Array:
    """The drawn array, if it has the type and shape of the definition. Raises `SpecError`."""
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
    """Raises `InvalidWorkload` for a workload that only a check can draw, on its device."""
    if workload.drawn is not None:
        raise InvalidWorkload("only a check can draw its inputs, on its device: other machines give other values")


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
    """The values of all scalars of a call; None for absent ones."""
    values: dict[str, float | bool | None] = {}
    absent = workload.omitted(found.definition)
    for tensor in found.definition.inputs:
        if tensor.is_scalar:
            value = workload.scalars.get(tensor.name)
            if value is None and tensor.name not in absent:
                value = parse(tensor.default or "0").evaluate(scope)
            # A line may write the float 1.0 as 1.
            values[tensor.name] = float(value) if value is not None and tensor.dtype in FLOATS else value
    return values
