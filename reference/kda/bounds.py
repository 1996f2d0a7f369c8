"""Inputs that keep the recurrence bounded: beta * |k|^2 <= 2 at every token."""

from collections.abc import Iterator, Mapping

import numpy as np
from gdnspec.family import Array, Definition, Scope, Workload

# Two of the reference's own roundings of |k|^2; inputs of norm one are drawn with their norm rounded down.
SLACK = 1e-5
BOUND = "lower_bound"  # the scalar


def problems(definition: Definition, arrays: Mapping[str, Array], workload: Workload, scope: Scope) -> Iterator[str]:
    """What of these inputs lets the state grow."""
    bound = workload.scalars.get(BOUND)
    if bound is not None and not float(bound) <= 0:
        yield f"lower_bound is {bound}: it is negative, or 0 for none, or decay is growth"
    if not normalises(definition, workload) and "k" in arrays:
        yield from _unbounded(arrays)


def normalises(definition: Definition, workload: Workload) -> bool:
    """Whether q and k are normalised inside the operator."""
    norm = definition.conventions.qk_norm
    return norm == "l2" or (norm == "optional_l2" and bool(workload.scalars.get("use_qk_l2norm", True)))


def _unbounded(arrays: Mapping[str, Array]) -> Iterator[str]:
    k = arrays["k"].values().astype(np.float64)
    norms = (k * k).sum(axis=-1).reshape(-1, k.shape[-2])  # [tokens, num_k_heads]
    beta = np.ones((1, 1))
    if "b" in arrays:
        b = arrays["b"].values().astype(np.float64)
        beta = 1.0 / (1.0 + np.exp(-b.reshape(-1, b.shape[-1])))
    elif "beta" in arrays:
        beta = arrays["beta"].values().astype(np.float64)
    heads = max(norms.shape[1], beta.shape[1])
    product = np.repeat(norms, heads // norms.shape[1], axis=1) * beta
    if product.size and product.max() > 2 + SLACK:
        yield f"beta * |k|^2 reaches {product.max():.4g}: above 2 the recurrence is not bounded"
