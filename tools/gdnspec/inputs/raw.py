"""Reads tensors of a safetensors file as raw bytes, and checks names, types, shapes and constraints.

It does not import NumPy, so that `gdnspec validate` answers quickly.
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
    "F8_E4M3": "float8_e4m3fn", "I8": "int8", "I32": "int32", "I64": "int64", "BOOL": "bool",
}  # fmt: skip
EXPECTED = "expected."  # prefix of recorded outputs: evidence beside the reference, never used to judge


@dataclass(frozen=True)
class Raw:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def integers(self) -> list[int]:
        """The values of an integer tensor, or of a boolean one as 0 and 1."""
        if self.dtype == "bool":
            return list(self.data)
        return memoryview(self.data).cast("i" if self.dtype == "int32" else "q").tolist()


def read_raw(path: Path) -> dict[str, Raw]:
    """All tensors of the file. Raises `SpecError` if it is incomplete or has a type that no definition uses."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise SpecError([Problem(path, "is not a regular file")])  # reading a pipe would block
        content = path.read_bytes()
        entries = deserialize(content)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    except (SafetensorError, ValueError, OverflowError) as error:
        raise SpecError([Problem(path, f"not a complete safetensors file: {error}")]) from None
    # The library silently takes the last of two tensors with one name; this parser refuses duplicate keys.
    parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode(), path)
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in DTYPES:
            raise SpecError([Problem(path, f"no definition uses the element type {entry['dtype']}", name)])
        tensors[name] = Raw(DTYPES[entry["dtype"]], tuple(entry["shape"]), bytes(entry["data"]))
    return tensors


def read_inputs(path: Path, definition: Definition, omit: Iterable[str]) -> dict[str, Raw]:
    """The definition's inputs, in its order. Tensors named expected.* are ignored; any other tensor is an error."""
    tensors = read_raw(path)
    wanted = [t for t in definition.inputs if not t.is_scalar and t.name not in omit]
    names = {tensor.name for tensor in wanted}
    problems = []
    for name in tensors:
        if name not in names and not name.startswith(EXPECTED):
            problems.append(Problem(path, f"{name!r} is not an input of {definition.name}", name, nearest(name, names)))
    for tensor in wanted:
        if tensor.name not in tensors:
            problems.append(Problem(path, f"no tensor {tensor.name!r}, an input of {definition.name}", tensor.name))
        elif tensors[tensor.name].dtype != tensor.dtype:
            problems.append(Problem(path, f"the type is {tensors[tensor.name].dtype}, not {tensor.dtype}", tensor.name))
    if problems:
        raise SpecError(problems)
    return {tensor.name: tensors[tensor.name] for tensor in wanted}


def hold_to(path: Path, tensors: Mapping[str, Raw], definition: Definition, scope: Scope) -> None:
    """Adds the values of integer inputs to `scope`. Raises `SpecError` if shapes or constraints are violated, or if
    `scope` has other values for them."""
    problems = []
    for name, raw in tensors.items():
        if definition.input(name).is_index:
            values = raw.integers()
            if scope.setdefault(name, values) != values:
                problems.append(Problem(path, "the values differ from those in the workload line", name))
            scope[name] = values
    broken = definition.broken(scope)
    problems += [Problem(path, f"breaks {constraint.expression!r}: {why}") for _, constraint, why in broken]
    for name, raw in tensors.items():
        wanted = definition.shape(definition.input(name), scope)
        if raw.shape != wanted:
            problems.append(Problem(path, f"the shape is {list(raw.shape)}, not {list(wanted)}", name))
    if problems:
        raise SpecError(problems)


def digest(tensors: Iterable[tuple[str, str, tuple[int, ...], "bytes | memoryview"]]) -> str:
    """sha256 over (name, type, shape, bytes) of every input, in the definition's order."""
    result = hashlib.sha256()
    for name, dtype, shape, data in tensors:
        result.update(f"{name} {dtype} {list(shape)}\n".encode())
        result.update(data)
    return result.hexdigest()
