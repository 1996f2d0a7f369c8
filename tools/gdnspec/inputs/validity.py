"""Whether drawn or recorded inputs may be used: values inside their domains, the recurrence bounded."""

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.array import Array
from gdnspec.model import write_gate
from gdnspec.model.definition import Definition, Scope, Tensor
from gdnspec.model.dtypes import FLOATS

# Two of the reference's own roundings of |k|^2; inputs of norm one are drawn with their norm rounded down.
SLACK = 1e-5
BLOCK = 1 << 22  # elements looked at together: a pool of gigabytes is not held twice


def problems(
    definition: Definition, arrays: Mapping[str, Array], normalised: bool, scope: Scope
) -> Iterator[str]:  # fmt: skip
    """What makes these inputs an invalid workload, in words. `normalised`: the operator normalises keys itself."""
    for name, array in arrays.items():
        yield from values(definition.input(name), array)
    found = {**arrays, **_unpacked(definition, arrays, scope)}
    if not normalised and "k" in found:
        yield from _unbounded(found, write_gate.factor(definition, scope))


def values(tensor: Tensor, array: Array) -> Iterator[str]:
    """What a definition does not allow one tensor to hold."""
    low, high = tensor.domain or (None, None)
    least, most, legal = np.inf, -np.inf, True
    flat = array.data.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        found = Array(array.dtype, flat[start : start + BLOCK]).values()
        if array.dtype in FLOATS:
            # Only a gate in log space may be infinite, and only downwards: alpha = 0.
            downwards = tensor.domain is not None and low is None
            legal = legal and bool((np.isfinite(found) | ((found == -np.inf) & downwards)).all())
        least, most = min(least, found.min()), max(most, found.max())
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


def _unbounded(arrays: Mapping[str, Array], gate_factor: int) -> Iterator[str]:
    """beta * |k|^2 <= 2 at every token, where keys arrive as they are used."""
    k = arrays["k"].values().astype(np.float64)
    norms = (k * k).sum(axis=-1).reshape(-1, k.shape[-2])  # [tokens, num_k_heads]
    beta = _write_strength(arrays, gate_factor)
    heads = max(norms.shape[1], beta.shape[1])
    product = np.repeat(norms, heads // norms.shape[1], axis=1) * beta
    if product.size and product.max() > 2 + SLACK:
        yield f"beta * |k|^2 reaches {product.max():.4g}: above 2 the recurrence is not bounded"


def _write_strength(arrays: Mapping[str, Array], gate_factor: int) -> NDArray[np.float64]:
    """beta [tokens, heads]: as given, the sigmoid of b times `gate_factor`, or one."""
    if "b" in arrays:
        b = arrays["b"].values().astype(np.float64)
        return gate_factor / (1.0 + np.exp(-b.reshape(-1, b.shape[-1])))
    return arrays["beta"].values().astype(np.float64) if "beta" in arrays else np.ones((1, 1))
