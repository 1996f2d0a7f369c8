"""Checks drawn or recorded inputs: values must be inside their domains, and within the bounds of their family."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.array import Array
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.workload import Workload

BLOCK = 1 << 22  # elements per step: a pool of gigabytes is not copied


def problems(found: Found, arrays: Mapping[str, Array], workload: Workload, scope: Scope) -> Iterator[str]:
    """Why these inputs are not a valid workload: values outside their domains, and problems that the family finds in
    all inputs together."""
    definition = found.definition
    for name, array in arrays.items():
        yield from values(found, definition.input(name), array, workload)
    together = {**arrays, **_unpacked(definition, arrays, scope)}
    with running(found.family, f"checking the inputs of {definition.name}"):
        yield from judged(found.family).problems(definition, together, workload, scope)


def values(found: Found, tensor: Tensor, array: Array, workload: Workload) -> Iterator[str]:
    """Values of one tensor outside its domain. Raises `SpecError` if a generator drew NaN or infinity."""
    low, high = tensor.domain or (None, None)
    least, most, legal = np.inf, -np.inf, True
    flat = array.data.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = Array(array.dtype, flat[start : start + BLOCK]).values()
        if array.dtype in FLOATS:
            # Only a gate in log space may be infinite, and only negative: alpha = 0.
            downwards = tensor.domain is not None and low is None
            legal = legal and bool((np.isfinite(block) | ((block == -np.inf) & downwards)).all())
        least, most = min(least, block.min()), max(most, block.max())
    if not legal and workload.tensors is None:
        message = f"draws {tensor.name} of {found.definition.name} with values that are not finite"
        raise SpecError([Problem(found.family.reference / FAMILY_CODE, f"{message}, in workload {workload.name!r}")])
    if not legal:
        yield f"{tensor.name} has values that are not finite"
    elif flat.size:
        if low is not None and least < low:
            yield f"{tensor.name} falls to {least}, below {low}"
        if high is not None and most > high:
            yield f"{tensor.name} rises to {most}, above {high}"


def _unpacked(definition: Definition, arrays: Mapping[str, Array], scope: Scope) -> dict[str, Array]:
    """The parts of packed tensors, each in its own shape."""
    found = {}
    for tensor in definition.inputs:
        start = 0
        for name, shape in definition.part_shapes(tensor, scope).items() if tensor.parts else ():
            data, size = arrays[tensor.name].data, prod(shape)
            found[name] = Array(tensor.dtype, data[..., start : start + size].reshape(*data.shape[:-1], *shape))
            start += size
    return found
