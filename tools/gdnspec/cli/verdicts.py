"""Print verdicts: a table with one row per definition and solution, and each failure in full."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.workloads import by_name
from gdnspec.cli.console import add_row, complain, number_of, print_table, say, table
from gdnspec.model.result import UNWRITTEN, CheckResult
from gdnspec.report.rows import largest

Row = tuple[str, str]  # definition and solution
SAME = 3  # names of workloads that have the same error, at most
WHOLE = 5  # failures of one solution on one definition that are shown whole, at most
OFTEN = 10  # an error so many times its budget is shown as a count, and not in percent
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # differs from process to process, while the error is the same


@dataclass
class Summary:
    """All results of one run. `planned`: how many there will be of each definition and solution. `verbose`: every
    failure is shown whole."""

    device: str
    planned: Mapping[Row, int] = field(default_factory=dict)
    rows: dict[Row, list[CheckResult]] = field(default_factory=dict)
    interrupted: bool = False
    verbose: bool = False
    _same: dict[tuple[str, ...], list[str]] = field(default_factory=dict)  # an error -> workloads after the first
    _shown: Counter[Row] = field(default_factory=Counter)  # failures of each row that were shown, whole or by name

    def add(self, result: CheckResult) -> None:
        """Keeps a result, and shows a failure on stderr: an error that repeats only once, and after the first few of a
        row only the names."""
        row = (result.definition, result.solution)
        self.rows.setdefault(row, []).append(result)
        if not result.failed:
            return
        error = (result.status, result.solution, result.definition, _without_places(result.message))
        if error in self._same:
            self._same[error].append(result.workload)
        else:
            self._same[error] = []
            self._shown[row] += 1
            _print_name(result)
            if self.verbose or self._shown[row] <= WHOLE:
                _print_details(result)

    def print_repeated(self) -> None:
        """Prints how often each error came again."""
        for (status, solution, definition, _), names in self._same.items():
            if names:
                listed = ", ".join(names[:SAME]) + (", ..." if len(names) > SAME else "")
                count = number_of(len(names), "more workload")
                complain(f"{status}  {solution} on {definition}: the same error on {count}: {listed}", style="red")
        for (definition, solution), shown in self._shown.items():
            if shown > WHOLE and not self.verbose:
                rest = number_of(shown - WHOLE, "failure")
                complain(f"{solution} on {definition}: {rest} named without details; gdnspec check -v shows them")
        self._same, self._shown = {}, Counter()

    @property
    def count(self) -> int:
        return sum(len(results) for results in self.rows.values())

    @property
    def not_reached(self) -> int:
        """Of what was planned; 0 where that is unknown."""
        return max(0, sum(self.planned.values()) - self.count)

    @property
    def failed(self) -> bool:
        return any(result.failed for results in self.rows.values() for result in results)

    def exit_code(self) -> int:
        """0 all passed, 1 something failed, 3 nothing could run."""
        if self.failed:
            return 1
        return 0 if any(result.status == "PASSED" for results in self.rows.values() for result in results) else 3


def verdict(results: list[CheckResult]) -> str:
    """The most frequent failure; PASSED if something ran and nothing failed; else UNSUPPORTED."""
    failed = [result.status for result in results if result.failed]
    if failed:
        return Counter(failed).most_common(1)[0][0]
    return "PASSED" if any(result.status == "PASSED" for result in results) else "UNSUPPORTED"


def largest_error(results: list[CheckResult]) -> str:
    """The largest error of all workloads that were compared, over its budget: a share, or how many times as large."""
    worst, where = largest(output for result in results for output in result.outputs)
    if worst is None:
        return ""
    said = "not finite" if math.isinf(worst) else f"{worst:.0%}" if worst < OFTEN else f"{worst:,.0f} times"
    return f"{said} ({where})"


def print_summary(summary: Summary) -> None:
    """Prints the table of verdicts on stdout. A row that was not finished says how many of how many were judged."""
    summary.print_repeated()
    _print_where_only_slices_failed(summary)
    rows = table("", "definition", "solution", "verdict", "passed", "failed", "unsupported", "largest error / budget")
    colours = {"PASSED": "green", "UNSUPPORTED": "yellow"}
    for row in sorted({*summary.rows, *summary.planned}):
        results = summary.rows.get(row, [])
        said = verdict(results)
        counts = Counter("failed" if r.failed else r.status for r in results)
        total = summary.planned.get(row, len(results))
        if len(results) < total and not counts["failed"]:
            said = f"{len(results)} of {total} judged"
            colours[said] = "yellow"
        add_row(
            rows,
            *row,
            said,
            f"{counts['PASSED']} of {total}",
            str(counts["failed"] or ""),
            str(counts["UNSUPPORTED"] or ""),
            largest_error(results) if said != "UNSUPPORTED" else "",
            styles={2: colours.get(said, "red")},
        )
    print_table(rows)
    print_notes(summary)


def print_notes(summary: Summary) -> None:
    """Prints on stdout what was not reached, what was unsupported and why, and where the solutions ran."""
    if summary.not_reached:
        total = number_of(sum(summary.planned.values()), "workload")
        say(f"not reached: {summary.not_reached} of {total}")
    everything = [result for results in summary.rows.values() for result in results]
    reasons = Counter((r.solution, r.message.split(" (")[0] if r.message.startswith("interpreted") else r.message)
                      for r in everything if r.status == "UNSUPPORTED")  # fmt: skip
    asked = Counter(r.solution for r in everything)
    supported = asked - Counter(r.solution for r in everything if r.status == "UNSUPPORTED")
    for (solution, reason), count in reasons.items():
        part = f"; {supported[solution]} of {asked[solution]} workloads supported" if supported[solution] else ""
        say(f"unsupported: {solution}, {number_of(count, 'workload')}: {reason}{part}")
    isolation = sorted({result.isolation for result in everything if result.isolation})
    say(f"device: {summary.device}; isolation of solutions: {', '.join(isolation) or 'none ran'}")


def _print_where_only_slices_failed(summary: Summary) -> None:
    """Prints on stderr what a kernel for contiguous inputs does wrong: its failures look like any other."""
    for (definition, solution), results in summary.rows.items():
        failed = [result.workload for result in results if result.failed]
        passed = any(result.status == "PASSED" for result in results)
        if failed and passed and _sliced(definition).issuperset(failed):
            complain(
                f"{solution} on {definition}: it fails only where inputs are slices, with other memory between their "
                'rows. Go by strides, or add "contiguous" to "supports" in its solution.json.'
            )


def _sliced(name: str) -> set[str]:
    """The shipped workloads of a definition with such inputs; none of what is no definition, such as a session."""
    found = definitions().get(name)
    lines = {} if found is None else by_name(found)
    return {line.name for line in lines.values() if found and not line.contiguous(found.definition)}


def _without_places(message: str) -> str:
    """The part of a message by which two errors are the same."""
    unwritten, _, _ = message.partition("; worst at") if UNWRITTEN in message else (message, "", "")
    return _ADDRESS.sub("0x", unwritten)


def _print_name(result: CheckResult) -> None:
    complain(f"{result.status}  {result.solution} on {result.definition}/{result.workload}", style="red")


def _print_details(result: CheckResult) -> None:
    first, *more = result.message.split("\n")
    complain(f"  {first}")
    if more:
        complain("\n".join(f"    {line}" for line in more))
    for output in result.outputs:
        shown = "  ".join(f"{m} {'not finite' if v is None else f'{v:.3g}'}" for m, v in output.errors.items())
        budget = "  ".join(f"{m} {v:.3g}" for m, v in output.budget.items())
        complain(f"  {output.output}: {shown}   (budget: {budget})")
    complain(f"  repeat: {result.repeat}")
