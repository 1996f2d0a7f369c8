"""Traces: what was measured of a solution, one file a device, and whether it still holds."""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnspec.catalog.carried_traces import carried_over
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.catalog.earlier import measured_as
from gdnspec.catalog.solutions import TRACES, Solution
from gdnspec.catalog.workloads import by_name
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.loading import from_text, numbered, read_text
from gdnspec.model.trace import Trace

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

# Keys of a tensor that no measurement depends on: they add calls, and change none that was measured.
_ABOUT_CALLERS = {"read_if", "strides"}
# What tells the tools about a batch: the numbers that were measured are the same without.
_ROLES = {"role", "per_sequence", "bounds", "counts"}
# How inputs are drawn: their sha256 is held to anyway.
_PARTS = {"parts": {"__all__": {"draw"}}}
_OF_TENSORS = dict.fromkeys(("description", "draw", *_ABOUT_CALLERS, *_ROLES), True) | _PARTS
# Prose: a word mended in it makes no measurement stale.
_PROSE: dict[str, Any] = {
    "description": True,
    "second_reference": True,  # equal to the first, whose name is among what counts
    "blocks": True,
    "symmetries": {"__all__": {"description"}},
    "axes": {"__all__": dict.fromkeys(("description", *_ROLES), True) | _PARTS},
    "inputs": {"__all__": _OF_TENSORS},
    "outputs": {"__all__": _OF_TENSORS},
    "constraints": {"__all__": {"message"}},
}


# Keys that came later: where they say nothing, what was measured before them still holds.
_ADDED_TO_TENSORS: dict[str, object] = {"parts": None, "indexes": None, "writes": False}
_ADDED: dict[str, dict[str, object]] = {
    "axes": {"parts": None},
    "inputs": _ADDED_TO_TENSORS,
    "outputs": _ADDED_TO_TENSORS,
    "symmetries": {"exact": True},
}


_hashes: dict[int, tuple[Found, str]] = {}  # by identity: a definition that was read again has another


def definition_hash(found: Found) -> str:
    """sha256 over what a measurement depends on: all of the definition but its prose."""
    if id(found) not in _hashes:
        _hashes[id(found)] = found, _hash(found)  # held, so that no other gets its identity
    return _hashes[id(found)][1]


def _hash(found: Found) -> str:
    content = found.definition.model_dump(mode="json", exclude=_PROSE)
    if content["version"] == 1:
        del content["version"]  # it came later
    content["family"] = found.family.about.measured_as or found.family.name
    for side, added in _ADDED.items():
        for item in content[side]:
            for key, nothing in added.items():
                if item.get(key, ...) == nothing:  # only a derived axis has parts
                    del item[key]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------


def trace_files(solution: Solution) -> list[Path]:
    """solutions/<name>/traces/<device>.jsonl, by device; none where nothing was measured. Those of a variant lie in
    traces/<variant>/."""
    return sorted(solution.traces.glob("*.jsonl"))


def files_below(folder: Path) -> list[Path]:
    """As `trace_files`, of a solution's folder that need not be whole, and of all that lies there as variants."""
    return [*sorted((folder / TRACES).glob("*.jsonl")), *sorted((folder / TRACES).glob("*/*.jsonl"))]


def load_traces(file: Path, warn: Callable[[str], None]) -> list[Trace]:
    """The lines of a file that are traces. One that is cut off or invalid is told to `warn`, with file and line
    number, and passed over. Raises `SpecError` where the file cannot be read at all."""
    return parse_traces(read_text(file), file, warn)


def parse_traces(text: str, file: Path, warn: Callable[[str], None]) -> list[Trace]:
    """As `load_traces`, of a text that was read already; `file` is what a warning calls it."""
    traces = []
    for number, line in numbered(text):
        try:
            traces.append(from_text(Trace, line, file, number))
        except SpecError as error:
            first, *more = error.problems
            beside = f", and {len(more)} more problems" if more else ""
            warn(f"{first}{beside}; the line is passed over")
    return traces


@dataclass(frozen=True)
class Measured:
    """A trace, and why it says nothing of today's solution, definition or workload; None where it does."""

    trace: Trace
    stale: str | None = None
    carried: str | None = None  # where other sources were measured, which do the same: how that is known


# --- stale ------------------------------------------------------------------------------------------------------


def is_stale(trace: Trace, solution: Solution, found: Found) -> str | None:
    """Why the trace says nothing of the solution, definition and workload as they are now; None where it does."""
    return stale_source(trace, solution) or stale_question(trace, found)


def stale_source(trace: Trace, solution: Solution) -> str | None:
    """Whether other code was measured."""
    if holds_for(trace.source_hash, solution, trace.definition, trace.workload):
        return None
    return "the solution has changed since it was measured"


def holds_for(source_hash: str, solution: Solution, definition: str, workload: str) -> bool:
    """Whether what was measured with these sources says something of the solution as it is now."""
    known = source_hash in measured_as(solution, definition)
    return known or carried_over(source_hash, solution, definition, workload) is not None


def stale_question(trace: Trace, found: Found) -> str | None:
    """Whether something else was asked of it: the definition or the workload has changed, or is gone."""
    now = found.definition.version
    if trace.definition_version != now:
        return f"it was measured on version {trace.definition_version} of the definition, which is at version {now}"
    if trace.definition_hash != definition_hash(found):
        return "the definition has changed since it was measured"
    known = by_name(found)
    if trace.workload not in known:
        return f"there is no workload {trace.workload!r} any more ({nearest(trace.workload, known)})"
    workload = known[trace.workload]
    changed = [key for key in ("preset", "regime", "sequence_lengths") if getattr(trace, key) != getattr(workload, key)]
    changed += [axis for axis, size in workload.axes.items() if trace.axes.get(axis) != size]
    # The preset's own, heads and sizes, as far as the trace names them.
    changed += [a for a, size in preset_of(found, workload).axes.items() if trace.axes.get(a, size) != size]
    return f"the workload has changed since it was measured: {', '.join(changed)}" if changed else None


# --- writing ----------------------------------------------------------------------------------------------------


def save(solution: Solution, trace: Trace) -> Path:
    """Writes the trace to its device's file, in the place of an earlier one of the same workload; returns the file.

    Every other line stays byte for byte, those that are cut off or that this gdnspec cannot read among them. The file
    is replaced as a whole, so that a reader never sees half of it. Raises `SpecError` where it cannot be written.
    """
    if trace.solution != solution.name:
        raise ValueError(f"a trace of {trace.solution!r} for {solution.name!r}")
    if not SLUG.fullmatch(trace.device):
        raise ValueError(f"{trace.device!r} is not the slug of a device")
    file = solution.traces / f"{trace.device}.jsonl"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file.parent):
            before = file.read_bytes() if file.exists() else b""
            _replace(file, _with(trace, before, file))
    except OSError as error:
        raise SpecError([Problem(file, f"cannot be written: {error.strerror or error}")]) from None
    return file


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two runs on two GPUs of a kind write one file: the second waits, and loses no line of the first."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _with(trace: Trace, before: bytes, file: Path) -> bytes:
    lines = before.split(b"\n")
    if not lines[-1]:
        lines.pop()
    # A last line without an end is one that was cut off: it gets an end, and the next line is one of its own.
    new = json.dumps(trace.model_dump(mode="json"), allow_nan=False).encode()
    earlier = [i for i, line in enumerate(lines) if _measures(line, file) == (trace.definition, trace.workload)]
    if not earlier:
        return b"\n".join([*lines, new, b""])
    lines[earlier[0]] = new
    return b"\n".join([line for i, line in enumerate(lines) if i not in earlier[1:]] + [b""])


def _measures(line: bytes, file: Path) -> tuple[str, str] | None:
    """(definition, workload) of a line; None where it is no trace."""
    try:
        trace = from_text(Trace, line.decode(), file)
    except (SpecError, UnicodeDecodeError):
        return None
    return trace.definition, trace.workload


def _replace(file: Path, content: bytes) -> None:
    # In the same folder, as a rename stays within one file system; not *.jsonl, so that nobody reads it.
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
