"""Traces as rows of a table: their content, their rank and their order."""

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.traces import Measured
from gdnspec.model import roles
from gdnspec.model.batch_invariance import badge
from gdnspec.model.result import OutputErrors
from gdnspec.model.trace import METHODS, Trace
from gdnspec.report.versus import Versus, versus


@dataclass
class Row:
    """One trace. `rank`: its place among traces of the same workload, device and method; None if it is not ranked."""

    index: int
    trace: Trace
    stale: str
    carried: str = ""
    error: float | None = None  # largest error over budget
    error_of: str = ""
    rank: int | None = None
    rivals: int = 0
    versus: dict[str, Versus] = field(default_factory=dict)  # by the name of the other

    @property
    def state(self) -> str:
        if self.stale:
            return "stale"
        return {"PASSED": "passed", "UNSUPPORTED": "unsupported"}.get(self.trace.status, "failed")

    @property
    def method(self) -> int:
        """The place of its timing method among all, the most reliable first."""
        timing = self.trace.timing
        return list(METHODS).index(timing.method) if timing else len(METHODS)

    @property
    def ranked(self) -> bool:
        return self.trace.ranked and not self.stale

    @property
    def fraction(self) -> float | None:
        """The bound over the time: 1 is as fast as this device's measured rates allow."""
        timing = self.trace.timing
        return timing.bound / timing.median if timing and timing.bound and timing.median else None

    @property
    def tokens(self) -> int | None:
        """The tokens of all sequences or rows; None if the definition does not exist any more."""
        found = definitions().get(self.trace.definition)
        return roles.tokens(found.definition, self.trace.axes) if found else None

    @property
    def batch(self) -> int | None:
        """The number of sequences or rows; None if the definition does not exist any more."""
        found = definitions().get(self.trace.definition)
        return roles.batch(found.definition, self.trace.axes) if found else None

    @property
    def badge(self) -> str:
        """What is known about batch invariance, unless the trace is stale."""
        return "" if self.stale else badge(self.trace.batch_invariant, self.trace.pieces)

    @property
    def labels(self) -> list[tuple[str, str]]:
        """(label, why): what a reader must know before believing the time."""
        said = [("stale", self.stale)] if self.stale else []
        if self.trace.timing is not None and self.trace.timing.method == "cpu":
            said.append(("CPU", "timed on a CPU: shown, never ranked"))
        said += [("carried over", self.carried)] if self.carried and not self.stale else []
        said += [("above the bound", why) for why in self.trace.warnings]
        return said + [("unclean", why) for why in self.trace.unclean[:1]]


def largest(outputs: Iterable[OutputErrors]) -> tuple[float | None, str]:
    """The largest error over its budget, with its metric and output; None if nothing was compared."""
    worst, where = None, ""
    for item in outputs:
        for metric, limit in item.budget.items():
            error = item.errors.get(metric, math.nan)
            if error is not None and math.isnan(error):
                continue  # this metric was not computed
            over = math.inf if error is None else error / limit if limit else math.inf if error else 0.0
            if worst is None or over > worst:
                worst, where = over, f"{metric} of {item.output}"
    return worst, where


def rows(measured: Iterable[Measured], order: Mapping[str, int]) -> list[Row]:
    """Failures first, stale traces last, then by workload as the definition lists them, and by rank."""
    found = []
    for item in measured:
        row = Row(0, item.trace, item.stale or "", item.carried or "")
        row.error, row.error_of = largest(item.trace.outputs)
        row.versus = {ratio.baseline: Versus(ratio.ratio, ratio.interval, True) for ratio in item.trace.against}
        found.append(row)
    _rank(found)
    _compare(found)
    place = {"failed": 0, "passed": 1, "unsupported": 2, "stale": 3}
    found.sort(
        key=lambda row: (
            place[row.state], order.get(row.trace.workload, len(order)), row.trace.workload, row.trace.device,
            row.rank is None, row.method, row.rank or 0, row.trace.solution,
        )
    )  # fmt: skip
    return found


def _rank(found: list[Row]) -> None:
    """Ranks rows. Traces with different timing methods are never compared."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in found:
        if row.ranked and row.trace.timing is not None:
            groups[row.trace.workload, row.trace.device, row.trace.timing.method].append(row)
    for group in groups.values():
        times = sorted(row.trace.timing.median for row in group if row.trace.timing)
        for row in group:
            assert row.trace.timing is not None
            row.rank, row.rivals = 1 + times.index(row.trace.timing.median), len(group)


def _compare(found: list[Row]) -> None:
    """Compares each ranked row with all others of its workload and device, so that the fastest has ratios too."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        if row.ranked:
            groups[row.trace.workload, row.trace.device].append(row)
    for group in groups.values():
        for row in group:
            for other in group:
                if other.trace.solution not in row.versus and (said := versus(row.trace, other.trace)):
                    row.versus[other.trace.solution] = said


def baselines(found: Iterable[Row], peers: Container[str]) -> list[str]:
    """The solutions to compare with: first other libraries, then baselines that a run has measured."""
    listed = list(found)
    others = {ratio.baseline for row in listed for ratio in row.trace.against}
    measured = {row.trace.solution for row in listed}
    return sorted(others | {name for name in measured if name in peers}, key=lambda name: (name not in peers, name))
