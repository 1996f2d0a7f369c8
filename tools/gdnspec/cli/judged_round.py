"""One round of `gdnspec check`: its jobs are judged, written and shown. Imported after torch was needed."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gdnspec.build.machine import Device
from gdnspec.catalog.solutions import Solution
from gdnspec.check.plan import Extras, Job, plan
from gdnspec.check.record import earlier
from gdnspec.check.run import Checker
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.extras import print_errors, print_symmetries
from gdnspec.cli.invariance_tables import print_invariance, save_invariance
from gdnspec.cli.progress import progress
from gdnspec.cli.selection import Selected, unserved
from gdnspec.cli.verdicts import Summary, print_summary
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.numerics.allowed import require

Write = Callable[[CheckResult], None]


@dataclass
class Round:
    """What is judged, and how its results are shown. `fail_fast`: until the first failure. `table`: with a table."""

    selected: Selected
    device: Device
    extras: Extras
    write: Write
    fail_fast: bool = False
    verbose: bool = False
    table: bool = True
    reused: Path | None = None  # results in this file are not judged again
    save: bool = False  # what --invariance found, as traces
    _done: dict[str, CheckResult] = field(default_factory=dict)

    def jobs(self, chosen: list[Solution]) -> list[Job]:
        """The jobs of each solution. Raises `SpecError` if no solution serves the chosen definitions."""
        for item, lines in self.selected:
            require(item.definition, lines)
        jobs = list(plan(chosen, self.selected, self.device, self.extras))
        if not jobs:
            raise SpecError(unserved([found.definition.name for found, _ in self.selected], chosen))
        return jobs

    def judge(self, checker: Checker, jobs: list[Job]) -> Summary:
        """Judges the jobs. Says on stderr where an interrupted run stopped."""
        planned = Counter((job.found.definition.name, job.solution.name) for job in jobs)
        summary = Summary(self.device.name, planned, verbose=self.verbose)
        self._done = self._earlier(jobs)
        with contextlib.suppress(KeyboardInterrupt):
            summary.interrupted = True
            self._follow(checker, jobs, summary)
            summary.interrupted = False
        for likeness in () if summary.interrupted else checker.wrong.likenesses():
            complain(f"like a known fault: {likeness}")
        checker.wrong.rows.clear()
        if self.save and not summary.interrupted:
            save_invariance(summary, jobs, checker.options.seed)
        if summary.interrupted:  # before the table: whoever reads stdout may be ended by the same signal
            kept = f"; {self.reused} holds the results so far, and the same command continues from there"
            complain(f"gdnspec: interrupted after {summary.count} of {len(jobs)}{kept if self.reused else ''}")
        if self.table and self.extras.invariance:
            print_invariance(summary)
        elif self.table:
            self._print(summary, len(jobs))
        else:
            summary.print_repeated()
        return summary

    def _earlier(self, jobs: list[Job]) -> dict[str, CheckResult]:
        if self.reused is None:
            return {}
        known = earlier(self.reused, warn)
        done = {job.key(): known[job.key()] for job in jobs if job.key() in known}
        if done:
            complain(
                f"{len(done)} of {len(jobs)} results taken from {self.reused}: same solution, workload and versions "
                "(--no-resume runs them again)"
            )
        return done

    def _follow(self, checker: Checker, jobs: list[Job], summary: Summary) -> None:
        """Writes, counts and shows results as they arrive, after those that are already done."""
        for result in self._done.values():
            summary.add(result)
        to_do = [job for job in jobs if job.key() not in self._done] if self._done else jobs
        with progress(len(jobs), len(self._done)) as advance, contextlib.closing(checker.run(to_do)) as results:
            for result in results:
                advance(result)  # first: a failure follows the line that says what is judged
                self.write(result)
                if self.verbose and not result.failed:
                    complain(f"{result.status}  {result.solution} on {result.definition}/{result.workload}")
                summary.add(result)
                if self.fail_fast and result.failed:
                    complain(f"stopped at the first failure, after {summary.count} of {len(jobs)}")
                    return

    def _print(self, summary: Summary, total: int) -> None:
        print_summary(summary)
        if self._done:
            say(f"{len(self._done)} of {total} results were taken from {self.reused}")
        if self.extras.symmetries:
            print_symmetries(summary)
        if self.extras.errors:
            print_errors(summary, self.selected)
