"""The fastest kernel for each measured operator, device, heads and lengths."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.workloads import by_name
from gdnspec.model.definition import Definition
from gdnspec.report import shapes
from gdnspec.report.conformance import Line
from gdnspec.report.figures import plain, ratio, seconds
from gdnspec.report.rows import Row
from gdnspec.report.versus import Versus, versus

LEVEL = 1.02  # times within 2% count as equal
SAID_OF_A_MACHINE = ("driver", "cuda", "torch", "triton")


@dataclass(frozen=True)
class Contestant:
    """A kernel in one answer. `counted`: whether it may be named the fastest. `why`: its verdict in words. `kind`: the
    kind of this verdict. `versus`: its time over the time of the fastest."""

    row: Row
    counted: bool
    kind: str
    why: str
    peer: bool
    versus: Versus | None = None

    @property
    def name(self) -> str:
        return plain(self.row.trace.solution)

    @property
    def time(self) -> float | None:
        return self.row.trace.timing.median if self.row.trace.timing else None

    @property
    def by_events(self) -> bool:
        return self.row.trace.timing is not None and self.row.trace.timing.method == "events"


@dataclass(frozen=True)
class Answer:
    """All contestants for one question, the fastest first. The answer with the largest `weight` is shown first:
    one that names a fastest kernel, then one without stale times, then the one with the most kernels, then the one
    with the longest sequences."""

    anchor: str
    definition: Definition
    device: str  # slug
    preset: str
    workload: str
    heads: str  # in words, like `lengths`
    lengths: str
    contestants: Sequence[Contestant]
    command: str
    weight: tuple[bool, bool, int, float, int]

    @property
    def fastest(self) -> Contestant | None:
        return self.contestants[0] if self.contestants[0].counted else None

    @property
    def device_said(self) -> str:
        return plain(shapes.device(self.contestants[0].row.trace))

    @property
    def question(self) -> str:
        """The question in words: the device, the operator, the heads and the lengths."""
        device = self.device_said
        heads = f"heads {self.heads}" if self.heads else f"preset {plain(self.preset)}"
        return f"On {shapes.article(device)} {device}, {self.definition.name} with {heads} and {self.lengths}"

    @property
    def comparison(self) -> str:
        """How much faster the fastest kernel is than the other libraries, and than the next kernel if that adds
        something."""
        if self.fastest is None:
            return ""
        if len(self.contestants) == 1:
            return "No other kernel was measured here."
        # A library that failed other workloads is compared too, because people use it.
        others = [c for c in self.contestants[1:] if c.peer and c.versus]
        following = self.contestants[1]
        if following.counted and not following.peer and (not others or self.fastest.peer or _level(following)):
            others.append(following)
        named = sorted((c.versus.ratio, c.name) for c in others if c.versus and c.versus.ratio >= 1 / LEVEL)
        return f"It is {_listed([_faster(*item) for item in named])}." if named else ""

    @property
    def objections(self) -> list[str]:
        """Kernels that took less time than the named one, and why they are not named."""
        best, found = self.fastest, []
        for c in self.contestants[1:]:
            if best is None or c.time is None or best.time is None or c.row.method != best.row.method:
                continue
            if c.counted and c.versus and c.versus.ratio < 1 / LEVEL:
                times = ratio(1 / c.versus.ratio)
                found.append(f"Where one run measured both in turns, {c.name} was {times} faster.")
            elif not c.counted and c.time < best.time:
                found.append(f"{c.name} takes {seconds(c.time)}, but it is not named the fastest: {c.why}.")
        return found

    @property
    def measured(self) -> str:
        """The dates, the driver and the libraries of the measurements."""
        timed = [c.row.trace for c in self.contestants if c.row.trace.timing] or [self.contestants[0].row.trace]
        days = sorted({trace.recorded[:10] for trace in timed})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        machine = timed[0].environment
        said = [f"{name} {machine[name]}" for name in SAID_OF_A_MACHINE if isinstance(machine.get(name), str)]
        return plain(", ".join([when, *said]))


def answers(found: Found, rows: Sequence[Row], lines: Sequence[Line], peers: Container[str]) -> list[Answer]:
    """One answer per device, preset and workload of these rows. Every row is in one answer."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.trace.device, row.trace.preset, row.trace.workload].append(row)
    made = [_answer(found, group, lines, peers) for group in groups.values()]
    made.sort(key=lambda answer: (answer.device, answer.preset, _size(answer), answer.workload))
    return _distinct(made)


def first(made: Sequence[Answer], usual: Sequence[str]) -> Answer | None:
    """The answer that a reader sees first: for the first of the usual operators that was measured."""
    measured = {answer.definition.name for answer in made}
    name = next((name for name in usual if name in measured), None)
    return max((a for a in made if name in (None, a.definition.name)), key=lambda a: a.weight, default=None)


def _size(answer: Answer) -> tuple[int, int]:
    row = answer.contestants[0].row
    return row.batch or 0, row.tokens or 0


def _answer(found: Found, group: Sequence[Row], lines: Sequence[Line], peers: Container[str]) -> Answer:
    judged = [_contestant(row, lines, peers) for row in group]
    judged.sort(key=lambda c: (not c.counted, c.row.method, c.time is None, c.time or 0, c.name))
    best = judged[0].row.trace
    if judged[0].counted:
        judged = [replace(c, versus=versus(best, c.row.trace)) if c.row.ranked else c for c in judged]
    row, definition = judged[0].row, found.definition
    tokens, batch = row.tokens or 0, row.batch or 1
    return Answer(
        _anchor(definition.name, best.device, best.preset, best.workload), definition, best.device, best.preset,
        best.workload, shapes.heads(found, best.preset), shapes.lengths(definition, best.axes, best.sequence_lengths),
        judged, _command(found, judged),
        (judged[0].counted, not any(c.row.stale for c in judged), sum(c.counted for c in judged), tokens / batch,
         tokens),
    )  # fmt: skip


def _distinct(made: list[Answer]) -> list[Answer]:
    """Adds the workload's name to answers whose lengths are the same in words, and makes anchors unique."""
    alike = Counter((answer.device, answer.preset, answer.lengths) for answer in made)
    taken: Counter[str] = Counter()
    found = []
    for answer in made:
        taken[answer.anchor] += 1
        again = taken[answer.anchor]
        several = alike[answer.device, answer.preset, answer.lengths] > 1
        found.append(
            replace(
                answer,
                anchor=answer.anchor if again == 1 else f"{answer.anchor}~{again}",
                lengths=f"{answer.lengths} ({plain(answer.workload)})" if several else answer.lengths,
            )
        )
    return found


def _anchor(*parts: str) -> str:
    """The part of an address that names an answer. It depends only on the names."""
    return "/".join(["fastest", *(re.sub(r"[^A-Za-z0-9_.\-]", "_", part)[:100] for part in parts)])


# --- verdicts ---------------------------------------------------------------------------------------------------


def _contestant(row: Row, lines: Sequence[Line], peers: Container[str]) -> Contestant:
    trace = row.trace
    peer = trace.solution in peers
    message = f": {plain(trace.message)}" if trace.message else ""
    if row.state == "stale":
        return Contestant(row, False, "stale", f"not counted: {plain(row.stale)}", peer)
    if row.state == "unsupported":
        return Contestant(row, False, "unsupported", f"does not support this{message}", peer)
    if row.state == "failed":
        return Contestant(row, False, "failed", f"failed this workload, {trace.status}{message}", peer)
    line = _line(trace.solution, trace.device, lines)
    if line is not None and not line.conforming:
        return Contestant(row, False, "failed", _judged(line, trace.device), peer)
    if not row.ranked:
        why = trace.unclean[0] if trace.unclean else "times on a CPU are not ranked"
        return Contestant(row, False, "stale", f"not counted: {plain(why)}", peer)
    return Contestant(row, True, "passed", _judged(line, trace.device) if line else "passed this workload", peer)


def _line(solution: str, device: str, lines: Sequence[Line]) -> Line | None:
    """The verdicts on this device. If there are none, those on another device, preferably with a failure."""
    mine = [line for line in lines if line.solution == solution]
    return min(mine, key=lambda line: (line.device != device, line.conforming), default=None)


def _judged(line: Line, device: str) -> str:
    where = "" if line.device == device else f" (on {plain(line.device)})"
    total = line.total
    ran = total.passed + total.failed
    if not ran:
        return f"supports none of the workloads that were judged{where}"
    if not total.failed:
        all_of_them = "the only workload" if ran == 1 else f"all {ran} workloads"
        return f"passed {all_of_them} that it supports{where}"
    regimes = [plain(regime) for regime, cell in line.cells.items() if cell.failed]
    badge = ", all of them in the strict suite" if line.conforming else ""
    return f"failed {total.failed} of {ran} workloads{badge}: {_listed(regimes)}{where}"


# --- words ------------------------------------------------------------------------------------------------------


def _level(contestant: Contestant) -> bool:
    return contestant.versus is not None and contestant.versus.ratio < LEVEL


def _faster(times: float, name: str) -> str:
    return f"as fast as {name} within 2%" if times < LEVEL else f"{ratio(times)} faster than {name}"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _command(found: Found, judged: Sequence[Contestant]) -> str:
    """The command that measures this again: the fastest kernel, and all others in turns with it."""
    trace = judged[0].row.trace
    if trace.workload not in by_name(found):
        return trace.command
    others = [c.row.trace.solution for c in judged[1:] if c.time is not None]
    command = ["gdnspec", "bench", found.definition.name, "--workload", trace.workload, "--solution", trace.solution]
    command += ["--against", ",".join(others)] if others else []
    on_cpu = trace.timing is not None and trace.timing.method == "cpu"
    return shlex.join([*command, *(["--device", "cpu"] if on_cpu else [])])
