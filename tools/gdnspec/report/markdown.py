"""Verdicts by regime and times of one solution, as a section of its README between two marks."""

from collections.abc import Iterable, Iterator, Sequence

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.traces import Measured
from gdnspec.catalog.workloads import by_name
from gdnspec.model.batch_invariance import badge, invariant, pieces
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.report.conformance import Cell, columns, regime_of
from gdnspec.report.units import shown_ratio, shown_share, shown_time

BEGIN, END = "<!-- gdnspec report: begin -->", "<!-- gdnspec report: end -->"


def section(
    solution: str, found: dict[str, Found], judged: Iterable[CheckResult], measured: Iterable[Measured], command: str
) -> str:
    """The verdicts and times of a solution on these definitions as Markdown. Empty if there are none."""
    verdicts = [result for result in judged if result.solution == solution]
    timed = [row for row in measured if row.trace.solution == solution and row.stale is None and row.trace.ranked]
    parts = [*_verdicts(verdicts, found), *_failures(verdicts), *_invariance(verdicts), *_times(timed, found)]
    return "\n".join([f"`{command}`", "", *parts]) if parts else ""


def placed(text: str, body: str, name: str) -> str:
    """`text` with `body` between its two marks. Adds the marks at the end if there are none. Raises `SpecError` if only
    one of them is there, or if they are in the wrong order."""
    whole = f"{BEGIN}\n\n{body.rstrip()}\n\n{END}"
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 and end < 0:
        return f"{text.rstrip()}\n\n{whole}\n" if text.strip() else f"# {name}\n\n{whole}\n"
    if begin < 0 or end < begin:
        raise SpecError(f"the marks {BEGIN} and {END} are incomplete or in the wrong order: remove them and try again")
    return text[:begin] + whole + text[end + len(END) :]


# --- verdicts ---------------------------------------------------------------------------------------------------


def _verdicts(verdicts: Sequence[CheckResult], found: dict[str, Found]) -> Iterator[str]:
    """A table with one row per regime and one column per definition."""
    names = [name for name in found if any(result.definition == name for result in verdicts)]
    if not names:
        return
    cells: dict[tuple[str, str], Cell] = {}
    for result in verdicts:
        place = regime_of(result, by_name(found[result.definition])), result.definition
        cell = cells.setdefault(place, Cell())
        kind = "failed" if result.failed else result.status.lower()
        setattr(cell, kind, getattr(cell, kind) + 1)
    devices = ", ".join(sorted({result.device for result in verdicts}))
    yield f"Workloads passed by regime, on {devices}:"
    yield ""
    yield from _table(
        ["regime", *names],
        ([regime, *(_cell(cells.get((regime, name))) for name in names)]
         for regime in columns() if any((regime, name) in cells for name in names)),
    )  # fmt: skip


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    ran = cell.passed + cell.failed
    said = f"**{cell.passed} of {ran}**" if cell.failed else f"{cell.passed} of {ran}" if ran else ""
    beside = f"{cell.unsupported} unsupported" if cell.unsupported else ""
    return ", ".join(filter(None, (said, beside)))


def _failures(verdicts: Sequence[CheckResult]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for result in verdicts:
        if result.failed:
            groups.setdefault((result.definition, result.status), []).append(result.workload)
    for (definition, status), names in groups.items():
        yield f"- {definition}, {status}: {', '.join(names)}"
    if groups:
        yield ""


def _invariance(verdicts: Sequence[CheckResult]) -> Iterator[str]:
    """A table of what `gdnspec check --invariance` found. Empty if no verdict says it."""
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for result in verdicts:
        if result.invariance:
            groups.setdefault((result.definition, result.device), []).append(result)
    rows = [
        [definition, device, badge(invariant(mine), pieces(mine))]
        for (definition, device), mine in sorted(groups.items())
    ]
    if any(said for _, _, said in rows):
        yield "Whether a sequence keeps its bits in other batches, and in pieces:"
        yield ""
        yield from _table(["definition", "device", "invariance"], [row for row in rows if row[2]])


# --- times ------------------------------------------------------------------------------------------------------


def _times(timed: Sequence[Measured], found: dict[str, Found]) -> Iterator[str]:
    """One table per device, in the order of the workloads' files."""
    order = {(name, workload): i for name, item in found.items() for i, workload in enumerate(by_name(item))}
    for device in sorted({row.trace.device for row in timed}):
        mine = sorted(
            (row.trace for row in timed if row.trace.device == device),
            key=lambda t: (t.definition, order.get((t.definition, t.workload), len(order)), t.workload),
        )
        yield f"Times on {device}; a ratio above 1 means that this solution is faster:"
        yield ""
        rows = []
        for trace in mine:
            assert trace.timing is not None
            bound = trace.timing.bound
            beside = ", ".join(f"{shown_ratio(r.ratio, r.interval)[0]} {r.baseline}" for r in trace.against)
            share = shown_share(bound / trace.timing.median if bound else None)
            rows.append([trace.definition, trace.workload, shown_time(trace.timing.median), share, beside])
        yield from _table(["definition", "workload", "time", "of the bound", "ratio"], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
