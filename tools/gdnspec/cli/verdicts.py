"""Print verdicts: a table with one row per definition and solution, and each failure in full."""

from collections import Counter
from dataclasses import dataclass, field

from gdnspec.cli.console import add_row, complain, print_table, say, table
from gdnspec.model.result import CheckResult


@dataclass
class Summary:
    """All results of one run."""

    device: str
    rows: dict[tuple[str, str], list[CheckResult]] = field(default_factory=dict)
    interrupted: bool = False

    def add(self, result: CheckResult) -> None:
        self.rows.setdefault((result.definition, result.solution), []).append(result)

    @property
    def count(self) -> int:
        return sum(len(results) for results in self.rows.values())

    def exit_code(self) -> int:
        """0 all passed, 1 something failed, 3 nothing could run."""
        results = [result for row in self.rows.values() for result in row]
        if any(result.failed for result in results):
            return 1
        return 0 if any(result.status == "PASSED" for result in results) else 3


def verdict(results: list[CheckResult]) -> str:
    """The most frequent failure; PASSED if something ran and nothing failed; else UNSUPPORTED."""
    failed = [result.status for result in results if result.failed]
    if failed:
        return Counter(failed).most_common(1)[0][0]
    return "PASSED" if any(result.status == "PASSED" for result in results) else "UNSUPPORTED"


def closest(results: list[CheckResult]) -> str:
    """The largest error among passed workloads, as a share of its budget."""
    shares = [
        (value / output.budget[metric], f"{metric} of {output.output}")
        for result in results
        for output in result.outputs
        for metric, value in output.errors.items()
        if metric in output.budget and value is not None and result.status == "PASSED"
    ]
    if not shares:
        return ""
    share, where = max(shares)
    return f"{share:.0%} ({where})"


def print_summary(summary: Summary) -> None:
    """Prints the table of verdicts on stdout."""
    rows = table("", "definition", "solution", "verdict", "passed", "failed", "unsupported", "largest error / budget")
    colours = {"PASSED": "green", "UNSUPPORTED": "yellow"}
    for (definition, solution), results in sorted(summary.rows.items()):
        said = verdict(results)
        counts = Counter("failed" if r.failed else r.status for r in results)
        total = len(results)
        add_row(
            rows,
            definition,
            solution,
            said,
            f"{counts['PASSED']} of {total}",
            str(counts["failed"] or ""),
            str(counts["UNSUPPORTED"] or ""),
            closest(results) if said != "UNSUPPORTED" else "",
            styles={2: colours.get(said, "red")},
        )
    print_table(rows)
    _print_notes(summary)


def _print_notes(summary: Summary) -> None:
    everything = [result for results in summary.rows.values() for result in results]
    reasons = Counter((r.solution, r.message.split(" (")[0] if r.message.startswith("interpreted") else r.message)
                      for r in everything if r.status == "UNSUPPORTED")  # fmt: skip
    asked = Counter(r.solution for r in everything)
    supported = asked - Counter(r.solution for r in everything if r.status == "UNSUPPORTED")
    for (solution, reason), count in reasons.items():
        part = f"; {supported[solution]} of {asked[solution]} workloads supported" if supported[solution] else ""
        say(f"unsupported: {solution}, {count} workloads: {reason}{part}")
    isolation = sorted({result.isolation for result in everything if result.isolation})
    say(f"device: {summary.device}; isolation of solutions: {', '.join(isolation) or 'none ran'}")


def print_failure(result: CheckResult, said_before: set[str]) -> None:
    """Prints one failure on stderr. A message that is in `said_before` is printed in its first line only."""
    complain(f"{result.status}  {result.solution} on {result.definition}/{result.workload}", style="red")
    first, *more = result.message.split("\n")
    complain(f"  {first}")
    if more and result.message not in said_before:
        complain("\n".join(f"    {line}" for line in more))
    said_before.add(result.message)
    for output in result.outputs:
        shown = "  ".join(f"{m} {'not finite' if v is None else f'{v:.3g}'}" for m, v in output.errors.items())
        budget = "  ".join(f"{m} {v:.3g}" for m, v in output.budget.items())
        complain(f"  {output.output}: {shown}   (budget: {budget})")
    complain(f"  repeat: {result.repeat}")
