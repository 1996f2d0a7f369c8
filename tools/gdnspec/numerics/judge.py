"""Compares one output with its expected values: shape, type, finiteness, and numbers, in that order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.model import roles
from gdnspec.model.budget import SPACING
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.result import UNWRITTEN, OutputErrors, Place, Status
from gdnspec.model.workload import Workload
from gdnspec.numerics.allowed import budget
from gdnspec.numerics.code_steps import coded
from gdnspec.numerics.metrics import Errors, Vectors, as_vectors, errors, multiplies_tokens


@dataclass(frozen=True)
class Verdict:
    """The status of an output or a call, and the reason if it is not PASSED."""

    status: Status
    message: str
    errors: OutputErrors | None = None


def judge(
    got: Tensor, expected: Tensor, tensor: TensorModel, definition: Definition, scope: Scope, limits: dict[str, float]
) -> Verdict:
    """The verdict on one output. `got` has the definition's shape and type; `expected` is float64 and finite."""
    if got.shape != expected.shape:
        raise ValueError(f"{tensor.name}: shape {tuple(got.shape)} against expected {tuple(expected.shape)}")
    have = as_vectors(got.to(torch.float64), tensor, definition, scope)
    want = as_vectors(expected, tensor, definition, scope)
    found = errors(have, want, SPACING.get(tensor.dtype), multiplies_tokens(definition), codes=coded(tensor))
    exceeded = [m for m, limit in limits.items() if not found.maxima[m] <= limit]
    finite = bool(torch.isfinite(have.values).all())
    worst = None
    if found.worst:
        metric = max(exceeded or limits, key=lambda m: found.maxima[m] / limits[m])
        worst = _place(found, metric, have, want, finite)
        written = definition.written(tensor, scope)
        if written is not None:
            worst = worst.model_copy(update={"sequence": written[worst.sequence]})
    record = OutputErrors(
        output=tensor.name,
        errors={m: value if math.isfinite(value) else None for m, value in found.maxima.items()},
        budget=limits,
        worst=worst,
    )
    at = _at(worst, tensor, definition)
    if not finite:
        unwritten = bool(torch.isnan(have.values).all())
        what = UNWRITTEN if unwritten else "it has values that are not finite"
        return Verdict("NON_FINITE", f"{tensor.name}: {what}{at}", record)
    if exceeded:
        said = ", ".join(f"{m} {found.maxima[m]:.4g} > {limits[m]:.4g}" for m in exceeded)
        return Verdict("INCORRECT_NUMERICAL", f"{tensor.name}: {said}{at}", record)
    return Verdict("PASSED", "", record)


def judge_all(
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    definition: Definition,
    workload: Workload,
    scope: Scope,
) -> list[Verdict]:
    """A verdict for each output, in the definition's order. Raises `SpecError` if the workload has no budget."""
    return [
        judge(got[o.name], expected[o.name], o, definition, scope, budget(definition, o, workload))
        for o in definition.judged
    ]


def _place(found: Errors, metric: str, have: Vectors, want: Vectors, finite: bool) -> Place:
    row, head = found.worst[metric]
    if not finite:
        bad = (~torch.isfinite(have.values)).any(-1).nonzero()[0]
        row, head = int(bad[0]), int(bad[1])
    difference = (have.values[row, head] - want.values[row, head]).abs()
    element = int(torch.nan_to_num(difference, nan=torch.inf).argmax())
    got = float(have.values[row, head, element])
    sequence, position = want.place(row)
    return Place(
        sequence=sequence,
        head=head,
        vector=position,
        element=element,
        got=got if math.isfinite(got) else None,
        expected=float(want.values[row, head, element]),
    )


def _at(place: Place | None, tensor: TensorModel, definition: Definition) -> str:
    if place is None:
        return ""
    got = "a value that is not finite" if place.got is None else f"{place.got:.6g}"
    if roles.of_all(definition, tensor):
        return f"; worst at index {place.vector}, element {place.element}: got {got}, expected {place.expected:.6g}"
    first = (tensor.shape or [])[0]
    of = "slot" if tensor.mutates else roles.piece(definition, first) or "sequence"
    row = "row" if roles.is_state(definition, tensor) or tensor.mutates else "token"
    where = f"{of} {place.sequence}, head {place.head}, {row} {place.vector}"
    return f"; worst at {where}, element {place.element}: got {got}, expected {place.expected:.6g}"
