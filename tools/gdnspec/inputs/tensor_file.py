"""The safetensors format: eight bytes of length, a JSON header, then the tensors.

gdnspec writes it without a library, so that the bytes of an export depend only on schema version 1. It reads headers
without a library, so that it can refuse names, types and shapes before it reads any data.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gdnspec.inputs.array import Array
from gdnspec.inputs.raw import DTYPES
from gdnspec.model.dtypes import SIZES
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import parse_json

LENGTH = 8  # bytes of the header's length, little-endian
NAMES = {name: code for code, name in DTYPES.items()}
LARGEST_HEADER = 1 << 20
DIMENSIONS = 16
METADATA = "__metadata__"


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, int]]:
    """The header of a file of tensors (name: type, shape), and the start of each tensor after it, in their order in the
    file. Wider elements come first, so that each tensor is aligned."""
    described, starts, end = {}, {}, 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: -SIZES[item[1][0]]):
        start, end = end, end + prod(shape) * SIZES[dtype]
        described[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        starts[name] = start
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text, starts


def encoded(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The file in pieces. The same arrays give the same bytes."""
    head, starts = header({name: (array.dtype, array.shape) for name, array in tensors.items()})
    yield head
    for name in starts:
        yield np.ascontiguousarray(tensors[name].data).reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: its start in bytes from the start of the file. An unknown type keeps its code."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def entries(file: BinaryIO, size: int, path: Path) -> dict[str, Entry]:
    """The tensors in a file of `size` bytes. Raises `SpecError` if the header and the file do not match."""
    length = int.from_bytes(file.read(LENGTH), "little")
    if size < LENGTH or length > size - LENGTH:
        raise _broken(path, f"the header should have {length} bytes, but the file has {size}")
    if length > LARGEST_HEADER:
        raise _broken(path, f"the header has {length} bytes, more than the limit of {LARGEST_HEADER}")
    try:
        text = file.read(length).decode()
    except UnicodeDecodeError:
        raise _broken(path, "the header is not UTF-8 text") from None
    header = parse_json(text, path)
    if not isinstance(header, dict):
        raise _broken(path, "the header is not a JSON object")
    data = LENGTH + length
    found = {name: _entry(name, value, data, path) for name, value in header.items() if name != METADATA}
    end = data
    for name, entry in sorted(found.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            raise _broken(path, f"the data of {name!r} begins at byte {entry.start}, not {end}")
        end += entry.nbytes
    if end != size:
        raise _broken(path, f"the data ends at byte {end}, but the file at {size}")
    return found


def _entry(name: str, value: Any, data: int, path: Path) -> Entry:
    wanted = {"dtype", "shape", "data_offsets"}
    if not isinstance(value, dict) or value.keys() != wanted or not isinstance(value["dtype"], str):
        raise _broken(path, f"{name!r} needs exactly the keys dtype, shape and data_offsets")
    shape, offsets = value["shape"], value["data_offsets"]
    if not (_sizes(shape) and len(shape) <= DIMENSIONS and _sizes(offsets) and len(offsets) == 2):
        raise _broken(path, f"shape or data_offsets of {name!r} are not lists of sizes")
    start, end = offsets
    dtype = DTYPES.get(value["dtype"], value["dtype"])
    if start > end or (dtype in SIZES and end - start != prod(shape) * SIZES[dtype]):
        raise _broken(path, f"{name!r}: {value['dtype'][:40]} {shape} does not match its bytes {start} to {end}")
    return Entry(dtype, tuple(shape), data + start, end - start)


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 1 << 63 for x in value)


def _broken(path: Path, message: str) -> SpecError:
    return SpecError([Problem(path, f"not a complete safetensors file: {message}")])
