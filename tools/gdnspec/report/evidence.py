"""What there is to report: traces beside their solutions, verdicts from files, and what of it is stale."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.earlier import measured_as
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import Measured, is_stale, load_traces, trace_files
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, jsonl, parse_json
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Ratio, Trace

Warn = Callable[[str], None]


def _results(file: Path, warn: Warn) -> Iterator[CheckResult]:
    """The lines of a file that are verdicts; others are told to `warn` and passed over."""
    for number, text in jsonl(file):
        try:
            yield build(CheckResult, parse_json(text, file, number), file, number)
        except SpecError as error:
            warn(f"{error}; the line is passed over")


def traces(
    wanted: Iterable[Solution], known: Iterable[Solution], found: dict[str, Found], warn: Warn
) -> list[Measured]:
    """Every wanted solution's traces of these definitions; of a question asked twice on one device, the last answer.
    Ratios to what is not as the known solutions are now are left out."""
    rows, changed = [], 0
    baselines = {solution.name: solution for solution in known}

    def holds(ratio: Ratio, definition: str) -> bool:
        other = baselines.get(ratio.baseline)
        return other is None or ratio.baseline_hash in measured_as(other, definition)

    for solution in wanted:
        latest: dict[tuple[str, str, str], Trace] = {}
        for file in trace_files(solution):
            for trace in load_traces(file, warn):
                if trace.solution != solution.name:
                    warn(str(Problem(file, f"a trace of {trace.solution!r} lies here; it is passed over")))
                elif trace.definition in found:
                    latest[trace.definition, trace.workload, trace.device] = trace
        for trace in latest.values():
            still = [ratio for ratio in trace.against if holds(ratio, trace.definition)]
            changed += len(trace.against) - len(still)
            stale = is_stale(trace, solution, found[trace.definition])
            rows.append(Measured(trace.model_copy(update={"against": still}), stale))
    if changed:
        ratios = "ratio" if changed == 1 else "ratios"
        warn(f"{changed} {ratios} left out: to baselines that have changed since they were measured")
    return rows


def verdicts(files: Iterable[Path], warn: Warn) -> list[CheckResult]:
    """The results of `gdnspec check --json`; of a question asked twice, the last answer."""
    latest: dict[tuple[str, ...], CheckResult] = {}
    for file in files:
        for result in _results(file, warn):
            # A fresh workload is another one with every seed.
            seed = str(result.seed) if result.suite == "fresh" else ""
            latest[result.definition, result.workload, result.solution, result.device, seed] = result
    return list(latest.values())
