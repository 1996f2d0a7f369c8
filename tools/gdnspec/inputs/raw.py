"""Tensors from a safetensors file as raw bytes, held to the definition: names, element types, shapes, constraints.

Without NumPy, so that `gdnspec validate` answers at once.
"""

import hashlib
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, deserialize

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.loading import parse_json

DTYPES = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
    "I32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
EXPECTED = "expected."  # prefix of recorded outputs: evidence beside the reference, never what judges


@dataclass(frozen=True)
class Raw:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def integers(self) -> list[int]:
        """The values of a tensor of integers, or of truths as 0 and 1."""
        if self.dtype == "bool":
            return list(self.data)
        return memoryview(self.data).cast("i" if self.dtype == "int32" else "q").tolist()


def read_raw(path: Path) -> dict[str, Raw]:
    """Every tensor of the file. Raises `SpecError` where it is cut short or has a type of no definition."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise SpecError([Problem(path, "is not a regular file")])  # a pipe would be waited for
        content = path.read_bytes()
        entries = deserialize(content)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    except (SafetensorError, ValueError, OverflowError) as error:
        raise SpecError([Problem(path, f"not a whole safetensors file: {error}")]) from None
    # Of two tensors of one name the library gives the last.
    parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode(), path)
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in DTYPES:
            raise SpecError([Problem(path, f"element type {entry['dtype']} is of no definition", name)])
        tensors[name] = Raw(DTYPES[entry["dtype"]], tuple(entry["shape"]), bytes(entry["data"]))
    return tensors


def read_inputs(path: Path, definition: Definition, omit: Iterable[str]) -> dict[str, Raw]:
    """The definition's inputs, in its order; expected.* are passed over, anything else is an error."""
    tensors = read_raw(path)
    wanted = [t for t in definition.inputs if not t.is_scalar and t.name not in omit]
    names = {tensor.name for tensor in wanted}
    problems = []
    for name in tensors:
        if name not in names and not name.startswith(EXPECTED):
            problems.append(Problem(path, f"{name!r} is no input of {definition.name}", name, nearest(name, names)))
    for tensor in wanted:
        if tensor.name not in tensors:
            problems.append(Problem(path, f"no tensor {tensor.name!r}, an input of {definition.name}", tensor.name))
        elif tensors[tensor.name].dtype != tensor.dtype:
            problems.append(Problem(path, f"{tensors[tensor.name].dtype}, not {tensor.dtype}", tensor.name))
    if problems:
        raise SpecError(problems)
    return {tensor.name: tensors[tensor.name] for tensor in wanted}


def hold_to(path: Path, tensors: Mapping[str, Raw], definition: Definition, scope: Scope) -> None:
    """Binds the 1-D integer inputs in `scope`; raises `SpecError` where shapes or constraints do not hold, or where
    `scope` has other values of them."""
    problems = []
    for name, raw in tensors.items():
        if definition.input(name).is_index:
            values = raw.integers()
            if scope.setdefault(name, values) != values:
                problems.append(Problem(path, "not the values that the workload's line gives", name))
            scope[name] = values
    problems += [Problem(path, why) for _, _, why in definition.broken(scope)]
    for name, raw in tensors.items():
        wanted = definition.shape(definition.input(name), scope)
        if raw.shape != wanted:
            problems.append(Problem(path, f"shape {list(raw.shape)}, not {list(wanted)}", name))
    if problems:
        raise SpecError(problems)


def digest(tensors: Iterable[tuple[str, str, tuple[int, ...], "bytes | memoryview"]]) -> str:
    """sha256 over (name, type, shape, bytes) of every input, in the definition's order."""
    result = hashlib.sha256()
    for name, dtype, shape, data in tensors:
        result.update(f"{name} {dtype} {list(shape)}\n".encode())
        result.update(data)
    return result.hexdigest()
