"""Is a trace file what it says it is? Form, names, and whether it lies where it belongs."""

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
    """By where it lies: its lines may be anything."""
    return file.suffix == ".jsonl" and TRACES in (file.parent.name, file.parent.parent.name)


def home(file: Path) -> tuple[Path, str | None]:
    """The folder of the solution that a trace file, or another file among its traces, belongs to, and the variant."""
    if file.parent.name == TRACES:
        return file.parents[1], None
    return file.parents[2], file.parent.name


def check_traces(file: Path, load: Callable[[Path], Solution] = load_solution) -> list[str | None]:
    """For each trace of a file why it is stale, or None; raises `SpecError` with every problem of every line. `load`
    reads the solution of a folder."""
    rows, (folder, variant) = load_lines(Trace, file), home(file)
    if not is_file(folder / MANIFEST):
        raise SpecError([Problem(file, f"belongs to no solution: there is no {MANIFEST} in {folder.name}/")])
    solution = as_variant(load(folder), variant)
    problems: list[Problem] = []
    seen: dict[tuple[str, str], int] = {}
    for number, trace in rows:
        key = trace.definition, trace.workload
        if key in seen:
            message = f"{'/'.join(key)} stands at line {seen[key]} already"
            problems.append(Problem(file, message, f"line {number}: /workload"))
        seen.setdefault(key, number)
        problems += _misplaced(trace, solution, file, number) + _unknown(trace, file, number)
    if problems:
        raise SpecError(problems)
    return [is_stale(trace, solution, definitions()[trace.definition]) for _, trace in rows]


def _misplaced(trace: Trace, solution: Solution, file: Path, number: int) -> list[Problem]:
    problems = []
    if trace.solution != solution.name:
        message = f"a trace of {trace.solution!r} in the folder of {solution.name!r}"
        problems.append(Problem(file, message, f"line {number}: /solution"))
    if trace.device != file.stem:
        message = f"measured on {trace.device!r}, in a file named {file.name!r}"
        problems.append(Problem(file, message, f"line {number}: /device"))
    return problems


def _unknown(trace: Trace, file: Path, number: int) -> list[Problem]:
    if trace.definition not in definitions():
        hint = nearest(trace.definition, definitions())
        return [Problem(file, f"no definition {trace.definition!r}", f"line {number}: /definition", hint)]
    known = by_name(definitions()[trace.definition])
    if trace.workload not in known:
        message = f"no workload {trace.workload!r} of {trace.definition}"
        return [Problem(file, message, f"line {number}: /workload", nearest(trace.workload, known))]
    return []
