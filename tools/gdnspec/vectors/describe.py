"""Describe a workload for a manifest, with everything that follows from its line and its definition."""

from typing import Any

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model.dtypes import FLOATS, INTEGERS
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.expression import parse
from gdnspec.model.loading import shortened
from gdnspec.model.vectors import VectorOutput, VectorScalar, VectorTensor, VectorWorkload
from gdnspec.model.workload import Workload
from gdnspec.numerics.allowed import budget

INPUTS = "inputs"
SUFFIX = ".safetensors"


def file_name(workload: Workload) -> str:
    """The name of a workload's file, for its inputs in inputs/ and for its outputs in the user's folder."""
    return workload.name + SUFFIX


def describe(found: Found, line: Workload, sha256: str) -> VectorWorkload:
    """A workload's entry in the manifest. `sha256`: of the inputs' file. Raises `SpecError` if a budget is missing."""
    definition = found.definition
    scope = line.scope(definition, preset_of(found, line))
    tensors = [tensor for tensor in definition.inputs if not tensor.is_scalar]
    return VectorWorkload(
        workload=line,
        axes={axis.name: scope[axis.name] for axis in definition.axes},
        file=f"{INPUTS}/{file_name(line)}",
        sha256=sha256,
        inputs=[
            VectorTensor(name=t.name, dtype=t.dtype, shape=list(definition.shape(t, scope)))
            for t in tensors
            if t.name not in line.omit
        ],
        omitted={t.name: _default(t, scope) for t in tensors if t.name in line.omit},
        scalars=[_scalar(t, line, scope) for t in definition.inputs if t.is_scalar],
        outputs=[
            VectorOutput(
                name=t.name,
                dtype=t.dtype,
                shape=list(definition.shape(t, scope)),
                budget=budget(definition, t, line),
            )
            for t in definition.judged
        ],
    )


def _scalar(tensor: Tensor, line: Workload, scope: Scope) -> VectorScalar:
    given = tensor.name in line.scalars
    value = line.scalars[tensor.name] if given else _default(tensor, scope)
    value = float(value) if tensor.dtype in FLOATS else value
    return VectorScalar(name=tensor.name, dtype=tensor.dtype, value=value, given=given)


def _default(tensor: Tensor, scope: Scope) -> bool | float:
    value = parse(tensor.default or "0").evaluate(scope)
    return bool(value) if tensor.dtype == "bool" else int(value) if tensor.dtype in INTEGERS else float(value)


def difference(got: Any, own: Any, pointer: str = "") -> tuple[str, str] | None:
    """The first place where two JSON values differ, and both values there; None if they are equal."""
    if isinstance(got, dict) and isinstance(own, dict):
        for key in (*own, *(key for key in got if key not in own)):
            at = f"{pointer}/{key}"
            if key not in got or key not in own:
                has, lacks = ("gdnspec's own", "this one") if key in own else ("this one", "gdnspec's own")
                return at, f"{has} has {shortened((own if key in own else got)[key])}, and {lacks} has nothing"
            found = difference(got[key], own[key], at)
            if found is not None:
                return found
        return None
    if isinstance(got, list) and isinstance(own, list) and len(got) == len(own):
        pairs = (difference(x, y, f"{pointer}/{i}") for i, (x, y) in enumerate(zip(got, own, strict=True)))
        return next((found for found in pairs if found is not None), None)
    if got == own and isinstance(got, bool) == isinstance(own, bool):
        return None
    return pointer, f"{shortened(got)}, but gdnspec's own has {shortened(own)}"
