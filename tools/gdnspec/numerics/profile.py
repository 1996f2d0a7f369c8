"""Errors by position in the sequence: they show drift, and how repeated keys amplify errors."""

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.result import Bucket, OutputErrors
from gdnspec.model.roles import is_state, of_all
from gdnspec.numerics.metrics import as_vectors, ratio, vector_errors

# Positions 0, 1-3, 4-15, 16-63, ...: powers of four, so that drift shows as a trend over columns.
EDGES = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 1 << 40)


def with_profile(
    errors: OutputErrors | None,
    output: TensorModel,
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    definition: Definition,
    scope: Scope,
) -> OutputErrors | None:
    """The errors with buckets by position, for an output of tokens; unchanged for a state."""
    if errors is None or is_state(definition, output) or output.mutates or of_all(definition, output):
        return errors
    have = as_vectors(got[output.name].to(torch.float64), output, definition, scope)
    want = as_vectors(expected[output.name], output, definition, scope)
    first = torch.searchsorted(want.sequence, torch.arange(want.sequences, device=want.sequence.device))
    position = torch.arange(len(want.sequence), device=want.sequence.device) - first[want.sequence]
    error_sq = ((have.values - want.values) ** 2).sum(-1)  # [rows, heads]
    expected_sq = (want.values**2).sum(-1)
    vectors = vector_errors(have, want)
    buckets = []
    for start, stop in pairwise(EDGES):
        rows = (position >= start) & (position < stop)
        if not bool(rows.any()):
            continue
        sums = torch.zeros(2, want.sequences, want.values.shape[1], dtype=torch.float64, device=rows.device)
        sums[0].index_add_(0, want.sequence[rows], error_sq[rows])
        sums[1].index_add_(0, want.sequence[rows], expected_sq[rows])
        buckets.append(
            Bucket(
                first=start,
                last=min(stop, int(position.max()) + 1) - 1,
                relative_l2=_finite(ratio(sums[0].sqrt(), sums[1].sqrt()).max()),
                worst_vector=_finite(vectors[rows].max()),
            )
        )
    return errors.model_copy(update={"profile": buckets})


def _finite(x: Tensor) -> float | None:
    value = float(x)
    return value if math.isfinite(value) else None
