"""python -m gdnspec.server.job: judge one bundle as `gdnspec intake` does, in a separate process."""

import os
import secrets
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from gdnspec.model.errors import SpecError, visible
from gdnspec.model.loading import build, parse_json
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.sandbox.wire.lifetime import die_with_parent
from gdnspec.server.job_lines import CRASHED, Line, Task
from gdnspec.server.room import for_want_of_room
from gdnspec.submission.finding import Finding

LONGEST = 2000  # characters in a text


def main() -> None:
    """Reads a `Task` from stdin, and writes `Line`s to stdout."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _end)
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # other output goes to the log, not to the server
    task = build(Task, parse_json(sys.stdin.readline(), Path("task")), Path("task"))
    if os.getppid() != task.parent:  # the server ended before `die_with_parent` took effect
        sys.exit(CRASHED)
    _Judge(task, said).run()


def _end(*_: object) -> None:
    raise KeyboardInterrupt


class _Judge:
    """Runs a task, and reports progress as a `Watcher` of intake."""

    def __init__(self, task: Task, said: TextIO) -> None:
        self._task, self._said = task, said

    def run(self) -> None:
        try:
            self._take_in()
        except SpecError as error:
            if for_want_of_room(error):  # this is not the bundle's fault
                print(error, file=sys.stderr)
                sys.exit(CRASHED)
            self._ends("invalid", *([str(problem) for problem in error.problems] or [str(error)]))

    def _take_in(self) -> None:
        from gdnspec.submission.bundle import read

        task = self._task
        bundle = read(Path(task.bundle))  # before torch is imported, so that an invalid bundle is reported at once
        self._say(Line(kind="opened", text=bundle.solution.name))

        from gdnspec.build import machine
        from gdnspec.sandbox.parent.confinement import NotIsolated
        from gdnspec.submission import judging
        from gdnspec.submission.intake import Policy, Refused, Unverified, take_in

        where = machine.device(task.device)
        if where is None:
            return self._ends("unverified", f"the server has no {task.device} device now")
        limits = judging.confinement(task.minutes, task.trusted)
        limits = replace(limits, closed=(*limits.closed, *map(Path, task.closed)))
        terms = judging.Terms(where, secrets.randbits(62), task.timeout, limits, command="gdnspec serve")
        try:
            taken = take_in(bundle, Path(task.into), terms, Policy(), self)
        except Refused as refused:
            return self._ends("refused", *refused.reasons)
        except Unverified as unverified:
            return self._ends("unverified", str(unverified))
        except NotIsolated as missing:
            return self._ends("unverified", f"isolation is reduced on the server: {missing}")
        speed = f"{taken.claimed} claimed times verified" if taken.claimed else "no claimed times"
        return self._ends("accepted", f"{len(taken.verdicts)} verdicts, seed {terms.seed}, {speed}")

    def found(self, findings: list[Finding]) -> None:
        for finding in findings:
            self._say(Line(kind="finding", text=f"{'refused' if finding.severe else 'noted'}  {finding}"[:LONGEST]))

    def started(self, total: int) -> None:
        self._say(Line(kind="workloads", total=total))

    def judged(self, result: CheckResult) -> None:
        # The command that repeats a verdict names folders of this machine, so it is not sent.
        self._say(Line(kind="verdict", verdict=result.model_copy(update={"repeat": ""})))

    def measured(self, trace: Trace) -> None:
        self._say(Line(kind="trace", trace=trace))

    def warned(self, text: str) -> None:
        self._say(Line(kind="warning", text=visible(text)[:LONGEST]))

    def _ends(self, state: str, *reasons: str) -> None:
        said = [visible(reason)[:LONGEST] for reason in reasons]
        self._say(Line.model_validate({"kind": "end", "state": state, "reasons": said}))

    def _say(self, line: Line) -> None:
        self._said.write(line.model_dump_json(exclude_defaults=True) + "\n")
        self._said.flush()


if __name__ == "__main__":
    main()
