"""Checks a trace file: its format, the names in it, and whether it is in the right folder."""

from collections.abc import Callable
from pathlib import Path

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import MANIFEST, TRACES, Solution, as_variant, load_solution
from gdnspec.catalog.traces import is_stale
from gdnspec.catalog.workloads import by_name
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.loading import is_file, load_lines
from gdnspec.model.trace import Trace


def is_trace_file(file: Path) -> bool:
    """Whether a path is the place of a trace file, whatever its content."""
    return file.suffix == ".jsonl" and TRACES in (file.parent.name, file.parent.parent.name)


def home(file: Path) -> tuple[Path, str | None]:
    """The solution's folder and the variant that a trace file, or another file beside it, belongs to."""
    if file.parent.name == TRACES:
        return file.parents[1], None
    return file.parents[2], file.parent.name


def check_traces(file: Path, load: Callable[[Path], Solution] = load_solution) -> list[str | None]:
    """For each trace of a file: why it is stale, or None. Raises `SpecError` with every problem of every line. `load`
    loads the solution of a folder."""
    rows, (folder, variant) = load_lines(Trace, file), home(file)
    if not is_file(folder / MANIFEST):
        raise SpecError([Problem(file, f"it belongs to no solution: {folder.name}/ has no {MANIFEST}")])
    solution = as_variant(load(folder), variant)
    problems: list[Problem] = []
    seen: dict[tuple[str, str], int] = {}
    for number, trace in rows:
        key = trace.definition, trace.workload
        if key in seen:
            message = f"line {seen[key]} already has a trace of {'/'.join(key)}"
            problems.append(Problem(file, message, f"line {number}: /workload"))
        seen.setdefault(key, number)
        problems += _misplaced(trace, solution, file, number) + _unknown(trace, file, number)
    if problems:
        raise SpecError(problems)
    return [is_stale(trace, solution, definitions()[trace.definition]) for _, trace in rows]


def _misplaced(trace: Trace, solution: Solution, file: Path, number: int) -> list[Problem]:
    problems = []
    if trace.solution != solution.name:
        message = f"a trace of {trace.solution!r} is in the folder of {solution.name!r}"
        problems.append(Problem(file, message, f"line {number}: /solution"))
    if trace.device != file.stem:
        message = f"it was measured on {trace.device!r}, but the file is named {file.name!r}"
        problems.append(Problem(file, message, f"line {number}: /device"))
    return problems


def _unknown(trace: Trace, file: Path, number: int) -> list[Problem]:
    if trace.definition not in definitions():
        hint = nearest(trace.definition, definitions())
        return [Problem(file, f"no definition {trace.definition!r}", f"line {number}: /definition", hint)]
    known = by_name(definitions()[trace.definition])
    if trace.workload not in known:
        message = f"{trace.definition} has no workload {trace.workload!r}"
        return [Problem(file, message, f"line {number}: /workload", nearest(trace.workload, known))]
    return []
