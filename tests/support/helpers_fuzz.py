"""What the fuzz tests share: how much is tried, and what a refusal must look like."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.array import CARRIER
from gdnspec.inputs.materialise import Inputs
from gdnspec.model.errors import Problem, SpecError
from helpers_mutations import Place, pointer

T = TypeVar("T")

SEED = 20260112
# Malformed inputs that every run must see refused. Of files: by structure, by bytes, by an end that comes too early.
FILES = {
    "definition.json": (1600, 400, 200),
    "presets.json": (900, 400, 150),
    "workloads.jsonl": (3000, 700, 200),
    "solution.json": (1300, 500, 200),
    "known_bad.json": (600, 400, 60),
    "faults.json": (900, 400, 200),
    "results.jsonl": (900, 400, 200),
}
TENSORS = {"cut": 900, "length": 300, "header": 1400, "data": 300}
LINES, EXPRESSIONS = 800, 1200
MESSAGES = {"changed": 500, "cut": 400, "damaged": 2500}
CHILDREN = {"errors": 1200, "calls": 500, "ends": 90}
DEADLINE = 10.0  # seconds of a processor for one case: what others do on this machine is not counted
LONGEST = 6000  # characters that one problem may take of a terminal


def put(file: Path, content: str | bytes) -> None:
    """Writes over what is there: some file systems wait for the disk where a file is emptied first."""
    data = content.encode() if isinstance(content, str) else content
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    assert os.write(descriptor, data) == len(data)
    os.ftruncate(descriptor, len(data))
    os.close(descriptor)


@contextlib.contextmanager
def soon(what: object) -> Iterator[None]:
    """Fails where what it holds keeps a processor busy for longer than `DEADLINE`."""
    started = time.process_time()
    try:
        yield
    finally:
        taken = time.process_time() - started
        assert taken < DEADLINE, f"{str(what)[:2000]}: {taken:.1f} s"


@dataclass
class Tally:
    """How many inputs were refused, and how many were found to be right after all."""

    refused: int = 0
    accepted: int = 0

    def attempt(
        self, what: str, load: Callable[[], T], file: Path, refused: bool, near: Place | None = None
    ) -> T | None:
        """Loads; None where it is refused as it should be. Anything but a good refusal is the failure."""
        result, error = None, None
        with soon(what):
            try:
                result = load()
            except SpecError as caught:
                error = caught
        if error is None:
            assert not refused, f"{what}: accepted"
            self.accepted += 1
            return result
        self.refused += 1
        assert error.problems, f"{what}: {error!r} has no problem"
        for problem in error.problems[:9]:
            sound(problem, file, what)
        if refused and near is not None:
            assert any(is_near(problem.place, near) for problem in error.problems), f"{what}: {error}"
        return None


def sound(problem: Problem, file: Path, what: str) -> None:
    """A problem names its file, on one line that a terminal can show."""
    assert problem.file == file, f"{what}: {problem}"
    line = str(problem)
    assert file.name in line, f"{what}: {line}"
    assert line.isprintable(), f"{what}: {line!r}"
    assert len(line) < LONGEST, f"{what}: {len(line)} characters"
    assert problem.message, f"{what}: {line}"


def is_near(place: str, near: Place) -> bool:
    """Whether a problem's place is the one of the mutation, or one above or below it."""
    place = place.partition(": ")[2] if place.startswith("line ") else place
    wanted = pointer(near)
    return place.startswith(wanted) or wanted.startswith(place)


def same(said: Any, read: Any) -> bool:
    """Whether a model holds what the JSON says: nothing dropped, nothing converted but a whole number to a float."""
    if type(said) is int and type(read) is float:
        return float(said) == read
    if type(said) is not type(read):
        return False
    if isinstance(said, dict):
        return said.keys() == read.keys() and all(same(said[key], read[key]) for key in said)
    if isinstance(said, list):
        return len(said) == len(read) and all(map(same, said, read))
    return bool(said == read)


def stands(found: Found, inputs: Inputs) -> None:
    """What validity promises, asked again of the numbers."""
    for name, array in inputs.tensors.items():
        tensor, values = found.definition.input(name), array.values()
        assert array.dtype == tensor.dtype
        assert array.data.dtype == CARRIER[tensor.dtype]
        assert array.shape == found.definition.shape(tensor, inputs.scope)
        low, high = tensor.domain or (None, None)
        assert not np.isnan(values).any()
        assert (tensor.domain and low is None) or np.isfinite(values).all()
        assert low is None or (values >= low).all()
        assert high is None or (values <= high).all()
    for tensor in found.definition.inputs:
        if tensor.is_scalar:
            assert inputs.scalars[tensor.name] is None or math.isfinite(inputs.scalars[tensor.name])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
