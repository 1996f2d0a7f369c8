"""Whether drawn or recorded inputs may be used: values inside their domains, and bounded by what their family says."""

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

BLOCK = 1 << 22  # elements looked at together: a pool of gigabytes is not held twice


def problems(found: Found, arrays: Mapping[str, Array], workload: Workload, scope: Scope) -> Iterator[str]:
    """What makes these inputs an invalid workload, in words: values outside their domain, and what their family says
    of them together."""
    definition = found.definition
    for name, array in arrays.items():
        yield from values(found, definition.input(name), array, workload)
    together = {**arrays, **_unpacked(definition, arrays, scope)}
    with running(found.family, f"inputs of {definition.name} are looked at"):
        yield from judged(found.family).problems(definition, together, workload, scope)


def values(found: Found, tensor: Tensor, array: Array, workload: Workload) -> Iterator[str]:
    """What a definition does not allow one tensor to hold. Raises `SpecError` where a generator drew no number."""
    low, high = tensor.domain or (None, None)
    least, most, legal = np.inf, -np.inf, True
    flat = array.data.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = Array(array.dtype, flat[start : start + BLOCK]).values()
        if array.dtype in FLOATS:
            # Only a gate in log space may be infinite, and only downwards: alpha = 0.
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
    """The parts of packed tensors, each of its own shape."""
    found = {}
    for tensor in definition.inputs:
        start = 0
        for name, shape in definition.part_shapes(tensor, scope).items() if tensor.parts else ():
            data, size = arrays[tensor.name].data, prod(shape)
            found[name] = Array(tensor.dtype, data[..., start : start + size].reshape(*data.shape[:-1], *shape))
            start += size
    return found
