"""Read what a report shows: the traces of solutions, and verdicts from files; and find out which traces are stale."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gdnspec.catalog.carried_traces import carried_over
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import Measured, holds_for, is_stale, load_traces, trace_files
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import from_text, jsonl
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Ratio, Trace

Warn = Callable[[str], None]


def _results(file: Path, warn: Warn) -> Iterator[CheckResult]:
    """The verdicts in a file. Invalid lines are skipped with a warning."""
    for number, text in jsonl(file):
        try:
            yield from_text(CheckResult, text, file, number)
        except SpecError as error:
            warn(f"{error}; this line is skipped")


def traces(
    wanted: Iterable[Solution], known: Iterable[Solution], found: dict[str, Found], warn: Warn
) -> list[Measured]:
    """The traces of the wanted solutions on these definitions. Of several traces for one workload and device, the last
    one counts. Ratios to baselines that have changed since are left out."""
    rows, changed = [], 0
    baselines = {solution.name: solution for solution in known}

    def holds(ratio: Ratio, trace: Trace) -> bool:
        other = baselines.get(ratio.baseline)
        return other is None or holds_for(ratio.baseline_hash, other, trace.definition, trace.workload)

    for solution in wanted:
        latest: dict[tuple[str, str, str], Trace] = {}
        for file in trace_files(solution):
            for trace in load_traces(file, warn):
                if trace.solution != solution.name:
                    warn(str(Problem(file, f"contains a trace of {trace.solution!r}, which is skipped")))
                elif trace.definition in found:
                    latest[trace.definition, trace.workload, trace.device] = trace
        for trace in latest.values():
            still = [ratio for ratio in trace.against if holds(ratio, trace)]
            changed += len(trace.against) - len(still)
            stale = is_stale(trace, solution, found[trace.definition])
            rows.append(Measured(trace.model_copy(update={"against": still}), stale, _carried(trace, solution)))
    if changed:
        ratios = "ratio" if changed == 1 else "ratios"
        warn(f"{changed} {ratios} left out, because the baselines have changed since they were measured")
    return rows


def _carried(trace: Trace, solution: Solution) -> str | None:
    proof = carried_over(trace.source_hash, solution, trace.definition, trace.workload)
    if proof is None:
        return None
    by = ", ".join(f"{name} {version}" for name, version in proof.compiler.items())
    return f"measured with sources {proof.before[:12]}; today's sources {proof.after[:12]} give the same code ({by})"


def verdicts(files: Iterable[Path], warn: Warn) -> list[CheckResult]:
    """The results of `gdnspec check --json`. Of several results for one workload, the last one counts."""
    latest: dict[tuple[str, ...], CheckResult] = {}
    for file in files:
        for result in _results(file, warn):
            # Fresh workloads with different seeds are different workloads.
            seed = str(result.seed) if result.suite == "fresh" else ""
            latest[result.definition, result.workload, result.solution, result.device, seed] = result
    return list(latest.values())
