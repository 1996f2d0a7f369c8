"""Verdicts by regime: which kinds of input a solution gets right."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gdnspec.catalog.families import regimes
from gdnspec.model.batch_invariance import badge as invariance_badge
from gdnspec.model.batch_invariance import invariant, pieces
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload

RECORDED, FRESH, OTHER = "recorded tensors", "fresh", "other"


def columns() -> tuple[str, ...]:
    """The columns of the table, in order: all regimes, and kinds of input without a regime."""
    return (*regimes(), RECORDED, FRESH, OTHER)


@dataclass
class Cell:
    """Counts of verdicts of one solution on one regime. `verdicts`: their places in the page's list."""

    passed: int = 0
    failed: int = 0
    unsupported: int = 0
    verdicts: list[int] = field(default_factory=list)


@dataclass
class Line:
    """A solution on a device. `strict`: whether it passed the strict suite; None if that was not run. A solution that
    fails only there is still `conforming`. `invariance`: the badge of `gdnspec check --invariance`; empty if that was
    not asked."""

    solution: str
    device: str
    cells: dict[str, Cell]
    total: Cell
    strict: bool | None
    conforming: bool
    invariance: str = ""


def regime_of(result: CheckResult, known: dict[str, Workload]) -> str:
    if result.suite == "fresh":
        return FRESH
    workload = known.get(result.workload)
    if workload is None:
        return OTHER
    return workload.regime or RECORDED


def table(verdicts: Iterable[tuple[int, CheckResult]], known: dict[str, Workload]) -> tuple[list[str], list[Line]]:
    """The regimes that occur, and one line per solution and device, those with failures first."""
    groups: dict[tuple[str, str], list[tuple[int, CheckResult]]] = defaultdict(list)
    for index, result in verdicts:
        groups[result.solution, result.device].append((index, result))
    lines = []
    for (solution, device), mine in sorted(groups.items()):
        cells: dict[str, Cell] = defaultdict(Cell)
        total = Cell()
        for index, result in mine:
            for cell in (cells[regime_of(result, known)], total):
                cell.verdicts.append(index)
                kind = "failed" if result.failed else result.status.lower()
                setattr(cell, kind, getattr(cell, kind) + 1)
        strict = Counter(result.status for _, result in mine if result.suite == "strict")
        ran = strict.total() - strict["UNSUPPORTED"]
        conforming = not any(result.failed for _, result in mine if result.suite != "strict")
        badge = strict["PASSED"] == ran if ran else None
        results = [result for _, result in mine]
        invariance = invariance_badge(invariant(results), pieces(results))
        lines.append(Line(solution, device, dict(cells), total, badge, conforming, invariance))
    lines.sort(key=lambda line: (line.total.failed == 0, line.solution, line.device))
    met = {regime for line in lines for regime in line.cells}
    return [regime for regime in columns() if regime in met], lines
