"""Write workloads for FlashInfer-Bench: axes, scalars, and all tensors in a file, also omitted ones with their
defaults."""

from pathlib import Path
from typing import Any

import numpy as np

from gdnspec.build.reference import foreign
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.inputs.array import Array, encode
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.inputs.tensor_file import encoded
from gdnspec.interop.axes import axes_of
from gdnspec.interop.dataset_paths import tensors_file
from gdnspec.model.elements import Tensor
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import parse
from gdnspec.model.preset import Preset
from gdnspec.model.workload import Workload

Json = dict[str, Any]


def rebound(found: Found, line: Workload, name: str, preset: Preset) -> Workload | None:
    """The line with other heads, to be drawn again; None if its tensors were recorded with different heads."""
    mine = {axis: preset_of(found, line).axes.get(axis) for axis in found.definition.const_axes()}
    if mine == {axis: preset.axes.get(axis) for axis in found.definition.const_axes()}:
        return line
    if line.tensors is not None:
        return None
    return line.model_copy(update={"preset": name, "sha256": None, "budget": None, "emulators": None})


def workload_json(found: Found, line: Workload, preset: Preset, root: Path) -> Json:
    """A line of workloads/*.jsonl. Writes its tensors below `root`. Raises `SpecError` for an invalid workload."""
    try:
        inputs = materialise(found, line)
    except InvalidWorkload as error:
        raise SpecError(f"workload {line.name!r}: {error}") from None
    definition = found.definition
    name, uuid = foreign(found.family).name(definition.name, preset.axes), f"{line.name}-{inputs.sha256[:12]}"
    path = tensors_file(found.family.name, name, uuid)
    arrays = [t for t in definition.inputs if not t.is_scalar]
    tensors = {t.name: inputs.tensors.get(t.name) or _default(found, t, inputs) for t in arrays}
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        for piece in encoded(tensors):
            out.write(piece)
    given: Json = {}
    for t in definition.inputs:
        if t.is_scalar:
            value = inputs.scalars[t.name]
            if value is None:
                value = parse(t.default or "0").evaluate(inputs.scope)
            given[t.name] = {"type": "scalar", "value": value}
        else:
            given[t.name] = {"type": "safetensors", "path": path, "tensor_key": t.name}
    axes = axes_of(found, preset).bound(inputs.scope)
    return {"definition": name, "solution": None, "evaluation": None,
            "workload": {"axes": axes, "inputs": given, "uuid": uuid}}  # fmt: skip


def _default(found: Found, tensor: Tensor, inputs: Inputs) -> Array:
    shape = found.definition.shape(tensor, inputs.scope)
    value = float(parse(tensor.default or "0").evaluate(inputs.scope))
    return Array(tensor.dtype, encode(np.full(shape, value), tensor.dtype))
