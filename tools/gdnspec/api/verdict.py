"""What a check of a function found."""

import html
from dataclasses import dataclass, field

from gdnspec.model.result import CheckResult


class CheckFailed(AssertionError):
    """A function is wrong, or nothing could be run. The message names the first failures."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a function over the workloads of a definition.

    `results` has one entry per workload, with its status, its message and its errors. `device` is cpu or cuda.
    `isolated` says whether the function ran in a process of its own. A verdict that is not isolated is never saved,
    submitted or ranked. `options`: further arguments of the check that a repetition needs.
    """

    definition: str
    function: str
    device: str
    results: list[CheckResult] = field(repr=False)
    isolated: bool
    options: dict[str, object] = field(default_factory=dict, repr=False)

    @property
    def failures(self) -> list[CheckResult]:
        return [result for result in self.results if result.failed]

    @property
    def ran(self) -> int:
        """How many workloads were judged. The others are unsupported, and say why."""
        return sum(result.status != "UNSUPPORTED" for result in self.results)

    @property
    def passed(self) -> bool:
        """Whether something ran and nothing failed."""
        return self.ran > 0 and not self.failures

    @property
    def status(self) -> str:
        """PASSED, the status of the first failure, or UNSUPPORTED where nothing ran."""
        if self.failures:
            return self.failures[0].status
        return "PASSED" if self.ran else "UNSUPPORTED"

    @property
    def errors(self) -> dict[str, dict[str, float]]:
        """For each output and metric the largest share of its budget over all workloads. Above 1 it fails; infinity
        stands for an error that is not finite."""
        found: dict[str, dict[str, float]] = {}
        for result in self.results:
            for output in result.outputs:
                shares = found.setdefault(output.output, {})
                for metric, limit in output.budget.items():
                    error = output.errors.get(metric)
                    share = float("inf") if error is None else error / limit if limit else float("inf") * bool(error)
                    shares[metric] = max(shares.get(metric, 0.0), share if share == share else 0.0)
        return found

    @property
    def repeat(self) -> str:
        """The line of Python that repeats the first failure; empty where nothing failed."""
        if not self.failures:
            return ""
        first = self.failures[0]
        function = self.function if self.function.isidentifier() else "function"  # a lambda has no name to write
        words: dict[str, object] = {
            "workload": first.workload,
            "device": self.device,
            **self.options,
            "seed": first.seed,
        }
        said = ", ".join(f"{word}={value!r}" for word, value in words.items())
        return f"gdnspec.check({function}, {self.definition!r}, {said})"

    def raise_for_status(self) -> None:
        """Raises `CheckFailed` unless something ran and nothing failed."""
        if not self.passed:
            raise CheckFailed(str(self))

    def __str__(self) -> str:
        if not self.ran:
            reasons = dict.fromkeys(result.message for result in self.results) or {"no workload was selected": None}
            return f"{self.function} on {self.definition}: nothing ran: {'; '.join(reasons)}"
        right = self.ran - len(self.failures)
        mark = "" if self.isolated else " (not isolated)"
        lines = [f"{self.function} on {self.definition}: {right} of {self.ran} workloads passed{mark}"]
        lines += [f"  {r.workload}: {r.status}  {r.message}" for r in self.failures[:3]]
        if len(self.failures) > 3:
            lines.append(f"  and {len(self.failures) - 3} more")
        if self.repeat:
            lines.append(f"  repeat: {self.repeat}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the summary, and a table of failures."""
        rows = "".join(
            f"<tr><td>{html.escape(r.workload)}</td><td>{r.status}</td>"
            f"<td style='text-align:left'>{html.escape(r.message)}</td></tr>"
            for r in self.failures
        )
        head = html.escape(str(self).splitlines()[0])
        return f"<b>{head}</b>" + (f"<table>{rows}</table>" if rows else "")
