"""gdnspec import --judge: check an embedded reference as a solution, on the smoke suite of its definition.

If the reference fails, it is judged again with the known differences put aside. This shows what else is wrong.
"""

import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device
from gdnspec.cli.selection import heads_of
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    from gdnspec.interop.meaning import Meaning
    from gdnspec.numerics.expected import Expected

LIMIT = 60.0  # seconds per call


def judge(meanings: "dict[str, Meaning]") -> None:
    """Judges each reference. If only the layout of states is unknown, judges it with each layout."""
    from gdnspec.interop.meaning import each_layout
    from gdnspec.numerics.expected import Expected

    expected = Expected(chosen_device("cpu").kind, warn)
    for name, found in meanings.items():
        for one in each_layout(found) or [found]:
            if one.ours is None:
                continue
            layout = one.ours.definition.conventions.state_layout
            title = f"{name}, if --state-layout {layout}" if found.candidates else name
            _judge(title, one, expected)


@dataclass
class Tally:
    """How many workloads passed, unchanged or with differences put aside. `failed` has the last result of the others.
    `words` names the differences that made a workload pass when put aside."""

    lines: list[Workload]
    expected: "Expected"
    found: "Meaning"
    passed: int = 0
    failed: dict[str, CheckResult] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    counts: list[tuple[int, list[str]]] = field(default_factory=list)

    def run(self, words: list[str], guessed: bool = False) -> None:
        """Judges the workloads that have not passed. Puts those `words` aside that concern the workload."""
        concerns = self.found.format.concerns
        mine = {line.name: [word for word in words if concerns(self.found, word, line)] for line in self.lines}
        todo = [
            line
            for line in self.lines
            if (line.name in self.failed or not self.counts) and (mine[line.name] or not words)
        ]
        if not todo:
            return
        put = [_put_aside(self.found, line, mine[line.name]) for line in todo]
        results = _run(self.found, put, words, self.expected)
        right = [name for name, result in results.items() if not result.failed]
        told = self.failed | results if not guessed else self.failed  # a wrong guess is not reported
        self.failed = {name: result for name, result in told.items() if name not in right}
        self.passed += len(right)
        self.words += [word for word in words if any(word in mine[name] for name in right) and word not in self.words]
        self.counts.append((self.passed, list(self.words)))


def _judge(title: str, found: "Meaning", expected: "Expected") -> None:
    from gdnspec.inputs.contract import NotExpressed

    lines, left_out = _lines(found)
    tally = Tally(lines, expected, found)
    try:
        tally.run([])
        if tally.failed and found.aside:
            tally.run(found.aside)
        if tally.failed:  # the reference may also differ in ways that its text does not show
            tally.run(list(dict.fromkeys([*found.aside, *found.format.asides])), guessed=True)
    except NotExpressed as error:
        complain(f"{title}: its reference is not judged: {error}")
        return
    first, last = tally.counts[0], tally.counts[-1]
    total = len(lines)
    text = f"{title}: its reference is right on {last[0]} of {total} smoke workloads"
    if last[0] > first[0]:
        text += f" {' and '.join(last[1])}; on {first[0]} unchanged"
    say(text)
    for reason, count in left_out.items():
        say(f"  {count} not judged: {reason}")
    for name, result in tally.failed.items():
        say(f"  {name}: {result.status}  {(result.message.splitlines() or [''])[0]}")


def _lines(found: "Meaning") -> tuple[list[Workload], dict[str, int]]:
    """The smoke suite with the heads of the imported definition; and why workloads were left out, with counts."""
    from gdnspec.interop.workloads_out import rebound

    assert found.ours is not None
    heads, lines = heads_of(found.ours, found.preset), []
    left_out: dict[str, int] = {}
    for line in [line for line in workloads(found.ours) if line.suite == "smoke"]:
        other = rebound(found.ours, line, found.preset, heads)
        reason = found.format.unasked(found, line)
        if not reason and other is None:
            reason = "its tensors were recorded with other heads"
        if reason or other is None:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            lines.append(other)
    return lines, left_out


def _put_aside(found: "Meaning", line: Workload, words: list[str]) -> Workload:
    """The workload, changed so that the difference has no effect."""
    scalars = dict(line.scalars)
    found.format.put_aside(words, scalars)
    if scalars == line.scalars:
        return line
    return line.model_copy(update={"scalars": scalars, "sha256": None, "budget": None, "emulators": None})


def _run(found: "Meaning", lines: list[Workload], aside: list[str], expected: "Expected") -> dict[str, CheckResult]:
    """One result per workload, by name. Raises `NotExpressed`."""
    from gdnspec.check.plan import plan
    from gdnspec.check.run import Checker, Options
    from gdnspec.interop.solutions_in import reference_solution
    from gdnspec.numerics.freeze import frozen

    assert found.ours is not None
    where = chosen_device("cpu")
    with tempfile.TemporaryDirectory(prefix="gdnspec-import-") as folder:
        solution = load_solution(reference_solution(found, Path(folder), aside))
        ready = []
        for line in lines:
            try:
                ready.append(line if line.budget else frozen(found.ours, line, expected))
            except SpecError as error:
                warn(f"{line.name} is not judged: {error}")
        checker = Checker(where.kind, Options(LIMIT, secrets.randbits(62), ()), warn)
        results = list(checker.run(list(plan([solution], [(found.ours, ready)], where))))
    return {result.workload: result for result in results}
