"""The sides A and B of a comparison: the traces of each, and whether they are stale."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gdnspec.catalog.commit import Past, resolve
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import MANIFEST, Solution, load_variant
from gdnspec.catalog.trace_check import home, is_trace_file
from gdnspec.catalog.traces import Measured, load_traces, parse_traces, stale_question, stale_source, trace_files
from gdnspec.cli.console import warn
from gdnspec.cli.selection import chosen_solutions
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.loading import is_file
from gdnspec.model.trace import Trace
from gdnspec.report.pairing import Key, Source

FORMS = "SOLUTION, SOLUTION@DEVICE, SOLUTION@COMMIT, or a file of traces"


@dataclass(frozen=True)
class Side:
    """One side of a comparison. `label`: the argument of the command. `devices`: its traces, by device and workload.
    `source`: the code that the traces should have measured; None if that code is not available."""

    label: str
    devices: dict[str, dict[Key, Measured]]
    source: Source | None


def side(text: str, solutions_dir: Path | None, wanted: Callable[[Trace], bool]) -> Side:
    """The side that `text` names, with the wanted traces only. Raises `SpecError` if there is no such side."""
    if text.endswith(".jsonl") or is_file(Path(text)):
        return _of_file(text, Path(text), wanted)
    if "/" in text and Path(text).is_dir():
        raise SpecError(f"{text} is a folder: give {FORMS}")
    name, _, where = text.partition("@")
    solution = chosen_solutions([name], solutions_dir)[0][0]
    files = trace_files(solution)
    if "@" not in text or where in [file.stem for file in files]:
        mine = [file for file in files if where in ("", file.stem)]
        traces = [t for file in mine for t in load_traces(file, warn)]
        return _side(text, traces, (solution.name, solution.source_hash), wanted, partial(_other_code, solution))
    return _of_commit(text, solution, where, wanted)


def _of_commit(text: str, solution: Solution, where: str, wanted: Callable[[Trace], bool]) -> Side:
    commit = resolve(solution.folder, where)
    if commit is None:
        devices = nearest(where, [file.stem for file in trace_files(solution)])
        raise SpecError(f"{where!r} is neither a device with traces of {solution.name} ({devices}) nor a commit")
    past = Past(solution.folder, commit, text, solution.variant)
    traces = [trace for file in past.traces() for trace in parse_traces(past.text(file), past.named(file), warn)]
    # The traces of a commit are held to the sources of that commit, not to those of today.
    return _side(text, traces, (solution.name, past.source_hash), wanted, partial(_other_hash, past.source_hash))


def _of_file(text: str, file: Path, wanted: Callable[[Trace], bool]) -> Side:
    said: list[str] = []
    traces = load_traces(file, said.append)
    if not traces:
        hint = said[0] if said else "it is empty"
        raise SpecError([Problem(file, "holds no trace", hint=hint)])
    for message in said:
        warn(message)
    names = sorted({trace.solution for trace in traces})
    if len(names) > 1:
        raise SpecError([Problem(file, f"holds traces of several solutions: {', '.join(names)}")])
    # A copy outside of a solution's folder was kept on purpose: it belongs to the code of its time.
    if not is_trace_file(file.resolve()):
        return _side(text, traces, None, wanted)
    folder, variant = home(file.resolve())
    if not is_file(folder / MANIFEST):
        return _side(text, traces, None, wanted)
    solution = load_variant(folder, variant)
    return _side(text, traces, (names[0], solution.source_hash), wanted, partial(_other_code, solution))


def _other_hash(source_hash: str, trace: Trace) -> str | None:
    return None if trace.source_hash == source_hash else "the solution has changed since it was measured"


def _other_code(solution: Solution, trace: Trace) -> str | None:
    return stale_source(trace, solution)


def _side(
    text: str,
    traces: list[Trace],
    source: Source | None,
    wanted: Callable[[Trace], bool],
    other_code: Callable[[Trace], str | None] = lambda trace: None,
) -> Side:
    devices: dict[str, dict[Key, Measured]] = {}
    for trace in filter(wanted, traces):
        rows = devices.setdefault(trace.device, {})
        key = trace.definition, trace.workload
        if key in rows:
            warn(f"{text}: {'/'.join(key)} on {trace.device} occurs twice; the last one counts")
        rows[key] = Measured(trace, _stale(trace, other_code))
    return Side(text, devices, source)


def _stale(trace: Trace, other_code: Callable[[Trace], str | None]) -> str | None:
    found = definitions().get(trace.definition)
    if found is None:
        return f"definition {trace.definition!r} does not exist any more ({nearest(trace.definition, definitions())})"
    return other_code(trace) or stale_question(trace, found)
