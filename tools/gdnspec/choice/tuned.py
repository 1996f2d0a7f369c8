"""Measurements that `gdnspec tune` made on this machine: traces in the cache folder, one file per definition."""

import fcntl
from collections.abc import Iterable
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.traces import load_traces
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.trace import Trace


def tuned_file(definition: str) -> Path:
    return paths.cache_dir() / "tuned" / f"{definition}.jsonl"


def tuned_traces(definition: str) -> list[Trace]:
    """The traces of a definition, the latest of each solution, device and shape; a line that cannot be read is
    skipped."""
    file = tuned_file(definition)
    try:
        read = load_traces(file, lambda text: None) if file.is_file() else []
    except (SpecError, OSError):
        return []
    return list({_key(trace): trace for trace in read}.values())


def keep_tuned(definition: str, traces: Iterable[Trace]) -> Path:
    """Adds traces of a definition, and replaces earlier ones of the same shapes. Returns the file. Raises `SpecError`
    if it cannot be written."""
    file = tuned_file(definition)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (file.parent / f".{file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = {_key(trace): trace for trace in [*tuned_traces(definition), *traces]}
            partial = file.with_name(f".{file.name}.new")
            partial.write_text("".join(f"{trace.model_dump_json()}\n" for trace in kept.values()))
            partial.replace(file)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise SpecError([Problem(file, message, hint="GDNSPEC_CACHE names another folder")]) from None
    return file


def _key(trace: Trace) -> tuple[object, ...]:
    lengths = tuple(sorted(trace.sequence_lengths)) if trace.sequence_lengths is not None else None
    return trace.solution, trace.device, trace.preset, tuple(sorted(trace.axes.items())), lengths
