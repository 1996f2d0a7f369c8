"""Results as they arrive: written to a file, and shown as progress on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gdnspec.cli.console import complain, err
from gdnspec.model.result import CheckResult

SECONDS = 5.0  # between two lines of a count, where no bar can be shown


def writer(stack: contextlib.ExitStack, file: Path | None, to_stdout: bool) -> Callable[[CheckResult], None]:
    """A function that writes each result where --json says."""
    from gdnspec.check.record import Recorder

    if file is None:
        return lambda result: None
    if to_stdout:
        return lambda result: print(result.model_dump_json(), flush=True)
    return stack.enter_context(Recorder(file)).write


@contextlib.contextmanager
def progress(total: int, done: int) -> Iterator[Callable[[CheckResult], None]]:
    """Shows a bar on a terminal; otherwise one line per solution and definition."""
    if not sys.stderr.isatty():
        last: list[str] = []

        def line(result: CheckResult) -> None:
            now = f"{result.solution} on {result.definition}"
            if last[-1:] != [now]:
                last.append(now)
                complain(f"checking {now}")

        yield line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task("starting", total=total, completed=done)
        yield lambda result: bar.update(task, advance=1, description=f"{result.solution} {result.workload}")


@contextlib.contextmanager
def ticking(what: str) -> Iterator[Callable[[int], None]]:
    """Shows a growing count on a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    with err().status(f"0 {what}") as status:
        yield lambda count: status.update(f"{count:,} {what}")


@contextlib.contextmanager
def counted(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal; otherwise a line now and then."""
    if sys.stderr.isatty():
        from rich.progress import Progress

        with Progress(console=err(), transient=True) as bar:
            task = bar.add_task(what, total=total, completed=done)
            yield lambda count: bar.update(task, completed=count)
        return
    said = time.monotonic()

    def line(count: int) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS:
            said = time.monotonic()
            complain(f"{count} of {total} {what}")

    yield line
