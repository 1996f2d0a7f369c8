"""Tensors from a safetensors file, held to the definition: names, element types, shapes."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from gdnspec.inputs.array import CARRIER, Array
from gdnspec.model.definition import Definition, Scope
from gdnspec.model.errors import Problem, SpecError, nearest

DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
    "I32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
EXPECTED = "expected."  # prefix of recorded outputs: evidence beside the reference, never what judges


def read_file(path: Path) -> dict[str, Array]:
    """Every tensor of the file. Raises `SpecError` where it is cut short or has a type of no definition."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    try:
        entries = deserialize(content)  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, OverflowError) as error:
        raise SpecError([Problem(path, f"not a whole safetensors file: {error}")]) from None
    arrays = {}
    for name, entry in entries:
        if entry["dtype"] not in DTYPES:
            raise SpecError([Problem(path, f"element type {entry['dtype']} is of no definition", name)])
        dtype = DTYPES[entry["dtype"]]
        data = np.frombuffer(entry["data"], dtype=CARRIER[dtype]).reshape(entry["shape"])
        arrays[name] = Array(dtype, data)
    return arrays


def read_inputs(path: Path, definition: Definition, omit: list[str]) -> dict[str, Array]:
    """The definition's inputs from the file; expected.* are passed over, anything else is an error."""
    arrays = read_file(path)
    wanted = [t for t in definition.inputs if not t.is_scalar and t.name not in omit]
    names = {tensor.name for tensor in wanted}
    problems = []
    for name in arrays:
        if name not in names and not name.startswith(EXPECTED):
            problems.append(Problem(path, f"{name!r} is no input of {definition.name}", name, nearest(name, names)))
    for tensor in wanted:
        if tensor.name not in arrays:
            problems.append(Problem(path, f"no tensor {tensor.name!r}, an input of {definition.name}", tensor.name))
        elif arrays[tensor.name].dtype != tensor.dtype:
            problems.append(Problem(path, f"{arrays[tensor.name].dtype}, not {tensor.dtype}", tensor.name))
    if problems:
        raise SpecError(problems)
    return {tensor.name: arrays[tensor.name] for tensor in wanted}


def shape_problems(path: Path, arrays: dict[str, Array], definition: Definition, scope: Scope) -> list[Problem]:
    """Tensors whose shape is not what the axes say."""
    problems = []
    for name, array in arrays.items():
        wanted = definition.shape(definition.input(name), scope)
        if array.shape != wanted:
            problems.append(Problem(path, f"shape {list(array.shape)}, not {list(wanted)}", name))
    return problems
