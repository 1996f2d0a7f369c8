"""Measurements as they arrive: a growing table and the time left on a terminal, plain lines otherwise."""

from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from gdnspec.cli.console import add_row, complain, err, table
from gdnspec.model.trace import Trace
from gdnspec.report.units import shown_resolved, shown_time

ROWS = 12  # shown at once, so that they fit into a small terminal


class LiveTable:
    """A context manager that shows progress. `total` is the number of measurements to come."""

    def __init__(self, total: int) -> None:
        self._done: list[Trace] = []
        self._bar = Progress(
            BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.description}"), console=err(),
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=total)
        self._live = Live(console=err(), transient=True, get_renderable=self._shown) if err().is_terminal else None

    def __enter__(self) -> "LiveTable":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def start(self, solution: str, workload: str) -> None:
        self._bar.update(self._task, description=f"{solution} {workload}")

    def round(self, rounds: int, spread: float) -> None:
        """Shows, after every tenth round, how narrow the interval is."""
        if rounds % 10 == 0:
            name = self._bar.tasks[0].description.split("  ")[0]
            self._bar.update(self._task, description=f"{name}  {rounds} rounds, +- {spread / 2:.1%}")

    def add(self, trace: Trace) -> None:
        """Adds a finished measurement."""
        self._done.append(trace)
        self._bar.advance(self._task)
        if self._live is None:
            for line in lines(trace):
                complain(line)

    def _shown(self) -> Group:
        rows: Table = table("", "workload", "solution", "status", "time", "against")
        for trace in self._done[-ROWS:]:
            add_row(rows, trace.workload, trace.solution, trace.status, time_of(trace), ratios_of(trace))
        return Group(rows, self._bar)


def lines(trace: Trace) -> list[str]:
    """The lines that describe a trace: its time, its warnings, and why it is not ranked."""
    said = [f"{trace.status}  {trace.solution} on {trace.definition}/{trace.workload}"]
    if trace.timing is not None:
        said[0] += f": {time_of(trace)}  {ratios_of(trace)}".rstrip()
    if trace.message:
        said.append(f"  {_first(trace.message)}")
    said += [f"  no ratio to {lost.baseline}: {lost.status}  {_first(lost.why)}" for lost in trace.missing]
    said += [f"  warning: {reason}" for reason in trace.warnings]
    return said + [f"  warning: {reason}: not ranked" for reason in trace.unclean]


def _first(text: str) -> str:
    return (text.splitlines() or [""])[0]


def time_of(trace: Trace) -> str:
    """The median and half the width of its interval in percent. Empty if nothing was timed."""
    if trace.timing is None:
        return ""
    low, high = trace.timing.interval
    half = (high - low) / 2 / trace.timing.median if trace.timing.median else 0.0
    if trace.timing.median < trace.timing.resolved:
        return shown_resolved(trace.timing.median, trace.timing.resolved)
    return f"{shown_time(trace.timing.median)} +- {half:.1%}"


def ratios_of(trace: Trace) -> str:
    return ", ".join(f"{found.ratio:.3f}x {found.baseline}" for found in trace.against)
