"""Traces: measurements of a solution, one file per device, and whether they are still valid."""

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

# Keys of a tensor that only allow more calls: they do not affect a measurement.
_ABOUT_CALLERS = {"read_if", "strides"}
# Keys that describe a batch to the tools: they do not affect a measurement.
_ROLES = {"role", "per_sequence", "bounds", "counts"}
# How inputs are drawn: the sha256 of the tensors covers this already.
_PARTS = {"parts": {"__all__": {"draw"}}}
_OF_TENSORS = dict.fromkeys(("description", "draw", *_ABOUT_CALLERS, *_ROLES), True) | _PARTS
# Prose: a correction of a text makes no measurement stale.
_PROSE: dict[str, Any] = {
    "description": True,
    "second_reference": True,  # it computes the same as the first, whose name counts
    "blocks": True,
    "symmetries": {"__all__": {"description"}},
    "axes": {"__all__": dict.fromkeys(("description", *_ROLES), True) | _PARTS},
    "inputs": {"__all__": _OF_TENSORS},
    "outputs": {"__all__": _OF_TENSORS},
    "constraints": {"__all__": {"message"}},
}


# Keys that were added later: if they have their default, earlier measurements stay valid.
_ADDED_TO_TENSORS: dict[str, object] = {
    "parts": None, "indexes": None, "writes": False, "scales": None, "earlier": None,
}  # fmt: skip
_ADDED: dict[str, dict[str, object]] = {
    "axes": {"parts": None},
    "inputs": _ADDED_TO_TENSORS,
    "outputs": _ADDED_TO_TENSORS,
    "symmetries": {"exact": True},
}


_hashes: dict[int, tuple[Found, str]] = {}  # by identity: a definition that was read again is another object


def definition_hash(found: Found) -> str:
    """sha256 over everything in the definition that affects a measurement."""
    if id(found) not in _hashes:
        _hashes[id(found)] = found, _hash(found)  # kept alive, so that no other object gets its identity
    return _hashes[id(found)][1]


def _hash(found: Found) -> str:
    content = found.definition.model_dump(mode="json", exclude=_PROSE)
    if content["version"] == 1:
        del content["version"]  # this key was added later
    if content["conventions"]["state_scale"] == "none":
        del content["conventions"]["state_scale"]  # so was this one
    if content["conventions"]["padding_slot"] == "minus_one":
        del content["conventions"]["padding_slot"]  # and this one
    if content["conventions"]["residuals"] == "none":
        del content["conventions"]["residuals"]  # and this one
    content["family"] = found.family.about.measured_as or found.family.name
    for side, added in _ADDED.items():
        for item in content[side]:
            for key, nothing in added.items():
                if item.get(key, ...) == nothing:  # only a derived axis has parts
                    del item[key]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------


def trace_files(solution: Solution) -> list[Path]:
    """The trace files of a solution or variant, sorted by device."""
    return sorted(solution.traces.glob("*.jsonl"))


def files_below(folder: Path) -> list[Path]:
    """All trace files below a solution's folder, with those of variants. The solution need not be valid."""
    return [*sorted((folder / TRACES).glob("*.jsonl")), *sorted((folder / TRACES).glob("*/*.jsonl"))]


def load_traces(file: Path, warn: Callable[[str], None]) -> list[Trace]:
    """The traces of a file. `warn` gets a message with file and line number for each invalid line, which is skipped.
    Raises `SpecError` if the file cannot be read."""
    return parse_traces(read_text(file), file, warn)


def parse_traces(text: str, file: Path, warn: Callable[[str], None]) -> list[Trace]:
    """Like `load_traces`, for a text. `file` is its name in warnings."""
    traces = []
    for number, line in numbered(text):
        try:
            traces.append(from_text(Trace, line, file, number))
        except SpecError as error:
            first, *more = error.problems
            beside = f", and {len(more)} other problems" if more else ""
            warn(f"{first}{beside}; the line is skipped")
    return traces


@dataclass(frozen=True)
class Measured:
    """A trace, and why it is stale, or None."""

    trace: Trace
    stale: str | None = None
    carried: str | None = None  # if other sources with the same code were measured: how that is known


# --- stale ------------------------------------------------------------------------------------------------------


def is_stale(trace: Trace, solution: Solution, found: Found) -> str | None:
    """Why the trace is not valid for the solution, definition and workload as they are now, or None."""
    return stale_source(trace, solution) or stale_question(trace, found)


def stale_source(trace: Trace, solution: Solution) -> str | None:
    """Why the trace is not valid for today's sources, or None."""
    if holds_for(trace.source_hash, solution, trace.definition, trace.workload):
        return None
    return "the solution has changed since it was measured"


def holds_for(source_hash: str, solution: Solution, definition: str, workload: str) -> bool:
    """Whether a measurement of sources with this hash is valid for the solution as it is now."""
    known = source_hash in measured_as(solution, definition)
    return known or carried_over(source_hash, solution, definition, workload) is not None


def stale_question(trace: Trace, found: Found) -> str | None:
    """Why the trace is not valid for today's definition and workload, or None."""
    now = found.definition.version
    if trace.definition_version != now:
        return f"it was measured on version {trace.definition_version} of the definition, which now has version {now}"
    if trace.definition_hash != definition_hash(found):
        return "the definition has changed since it was measured"
    known = by_name(found)
    if trace.workload not in known:
        return f"the workload {trace.workload!r} no longer exists ({nearest(trace.workload, known)})"
    workload = known[trace.workload]
    changed = [key for key in ("preset", "regime", "sequence_lengths") if getattr(trace, key) != getattr(workload, key)]
    changed += [axis for axis, size in workload.axes.items() if trace.axes.get(axis) != size]
    # The axes of the preset, as far as the trace names them.
    changed += [a for a, size in preset_of(found, workload).axes.items() if trace.axes.get(a, size) != size]
    return f"the workload has changed since it was measured: {', '.join(changed)}" if changed else None


# --- writing ----------------------------------------------------------------------------------------------------


def save(solution: Solution, trace: Trace) -> Path:
    """Writes the trace to the file of its device, and replaces an earlier trace of the same workload. Returns the file.
    What the earlier one says of the same sources and the new one does not, of times or of batch invariance, is kept. So
    is a time that could be believed, where the new one cannot.

    All other lines stay as they are, byte for byte, even those that this gdnspec cannot read. The file is replaced as a
    whole, so that a reader never sees half of it. Raises `SpecError` if it cannot be written.
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
    """Holds a lock on the folder: two runs on GPUs of one kind write the same file, and neither may lose a line."""
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
    # A last line without a line break was cut off. It gets one, so that the new line stays separate.
    found = {i: one for i, line in enumerate(lines) if (one := _read_trace(line, file)) is not None}
    earlier = [i for i, one in found.items() if (one.definition, one.workload) == (trace.definition, trace.workload)]
    for i in earlier:
        trace = _joined(trace, found[i])
    new = json.dumps(trace.model_dump(mode="json"), allow_nan=False).encode()
    if not earlier:
        return b"\n".join([*lines, new, b""])
    lines[earlier[0]] = new
    return b"\n".join([line for i, line in enumerate(lines) if i not in earlier[1:]] + [b""])


def _joined(new: Trace, old: Trace) -> Trace:
    """The new trace with what only the old one says, if both are about the same sources and definition."""
    if (new.source_hash, new.definition_hash) != (old.source_hash, old.definition_hash):
        return new
    answers = {key: getattr(old, key) for key in ("batch_invariant", "pieces")}
    if any(getattr(new, key) is not None for key in answers):
        answers = {key: getattr(new, key) for key in answers}
    kept = old if _worth(old) > _worth(new) else new
    return kept.model_copy(update=answers)


def _worth(trace: Trace) -> int:
    """2: it has a time that can be believed. 1: one that cannot. 0: none."""
    return 0 if trace.timing is None else 2 if trace.status == "PASSED" else 1


def _read_trace(line: bytes, file: Path) -> Trace | None:
    """The trace in a line; None if it holds none."""
    try:
        return from_text(Trace, line.decode(), file)
    except (SpecError, UnicodeDecodeError):
        return None


def _replace(file: Path, content: bytes) -> None:
    # The new file is in the same folder, because a rename stays within one file system. Its name does not end in
    # .jsonl, so that nobody reads it.
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
