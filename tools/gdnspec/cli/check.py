"""gdnspec check: is a solution correct?"""

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.cli.console import complain, err, warn
from gdnspec.cli.device import chosen_device
from gdnspec.cli.verdicts import Summary, print_failure, print_summary
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import SUITES, Workload

if TYPE_CHECKING:
    from gdnspec.runner.plan import Job

Selected = list[tuple[Found, list[Workload]]]


def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="DEFINITION", help="None named: all.")] = None,
    solution: Annotated[list[str] | None, typer.Option(help="Only this solution; may be repeated.")] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(SUITES)} or all; may be repeated.", show_default="smoke, or all with --workload"
        ),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this workload, of any suite; may be repeated.")
    ] = None,
    workloads_file: Annotated[
        Path | None, typer.Option("--workloads", help="Take workloads from this file (one definition).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    solutions_dir: Annotated[Path | None, typer.Option(help="Also look for solutions here.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Append each result as a line of JSON, and take from it what was judged before; - is stdout.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Take results that FILE holds for the same question.")] = True,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one call may take.")] = 120.0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=(1 << 62) - 1, help="Of the second call's content.", show_default="a new one each run"),
    ] = None,
) -> None:
    """Check solutions for correctness on a definition's workloads."""
    found = [definition(name) for name in names] if names else list(definitions().values())
    selected = _select(found, suite, workload, workloads_file)
    chosen, broken = _solutions(solution, solutions_dir)

    from gdnspec.compare.budget import require
    from gdnspec.runner.check import Checker, Options
    from gdnspec.runner.plan import plan

    for item, lines in selected:
        require(item.definition, lines)
    where = chosen_device(device)
    jobs = list(plan(chosen, selected, where))
    if not jobs:
        served = ", ".join(f.definition.name for f, _ in selected)
        raise SpecError(f"no solution serves {served}: gdnspec list solutions")
    flags = ["--solutions-dir", str(solutions_dir.resolve())] if solutions_dir else []
    flags += ["--workloads", str(workloads_file.resolve())] if workloads_file else []
    flags += ["--timeout", f"{timeout:g}"] if timeout != Options.timeout else []
    # Nobody can prepare for content that nobody knew.
    options = Options(timeout, secrets.randbits(62) if seed is None else seed, tuple(flags))
    checker = Checker(where.kind, options, warn)
    summary = Summary(where.name)
    to_stdout = str(json_file) == "-"
    with contextlib.ExitStack() as stack:
        write = _writer(stack, json_file, to_stdout)
        done = _earlier(json_file, jobs) if resume and json_file is not None and not to_stdout else {}
        try:
            _follow(checker.run([job for job in jobs if job.key() not in done]), done, jobs, summary, write)
        except KeyboardInterrupt:
            summary.interrupted = True
    if not to_stdout:
        print_summary(summary)
    if summary.interrupted:
        kept = f"; what was judged is in {json_file}, the same command goes on" if json_file else ""
        complain(f"gdnspec: interrupted after {summary.count} of {len(jobs)}{kept}")
        raise typer.Exit(130)
    for problem in broken:
        complain(f"gdnspec: {problem}")
    if broken:
        raise typer.Exit(2)
    raise typer.Exit(summary.exit_code())


def _select(found: list[Found], suite: list[str] | None, workload: list[str] | None, file: Path | None) -> Selected:
    for name in suite or ():
        if name not in (*SUITES, "all"):
            raise SpecError(f"no suite {name!r} ({nearest(name, (*SUITES, 'all'))})")
    if file is not None:
        if len(found) != 1:
            raise SpecError("--workloads goes with one definition: gdnspec check DEFINITION --workloads FILE")
        lines = [(found[0], load_workloads(file, found[0]))]
    else:
        lines = [(item, workloads(item)) for item in found]
    everything = file is not None or workload is not None
    suites = set(suite or (SUITES if everything else ("smoke",)))
    if "all" in suites:
        suites = set(SUITES)
    if workload is not None:
        known = [line.name for _, group in lines for line in group]
        for name in workload:
            if name not in known:
                raise SpecError(f"no workload {name!r} ({nearest(name, known)})")
    chosen = [
        (item, [w for w in group if w.suite in suites and (workload is None or w.name in workload)])
        for item, group in lines
    ]
    if not any(group for _, group in chosen):
        raise SpecError(f"no workload in {', '.join(sorted(suites))}: gdnspec list workloads")
    return [(item, group) for item, group in chosen if group]


def _solutions(wanted: list[str] | None, extra: Path | None) -> tuple[list[Solution], list[object]]:
    known, problems = solutions(extra)
    if wanted is None:
        return list(known.values()), list(problems)
    for name in wanted:
        mine = [problem for problem in problems if name in (problem.file.parent.name, problem.file.name)]
        if mine:  # a name that is taken is one of these: which of the two was meant, nobody knows
            raise SpecError(mine)
        if name not in known:
            raise SpecError(f"no solution {name!r} ({nearest(name, known)})")
    return [known[name] for name in dict.fromkeys(wanted)], []


def _writer(stack: contextlib.ExitStack, file: Path | None, to_stdout: bool) -> Callable[[CheckResult], None]:
    from gdnspec.runner.record import Recorder

    if file is None:
        return lambda result: None
    if to_stdout:
        return lambda result: print(result.model_dump_json(), flush=True)
    return stack.enter_context(Recorder(file)).write


def _earlier(file: Path, jobs: "list[Job]") -> dict[str, CheckResult]:
    from gdnspec.runner.record import earlier

    known = earlier(file, warn)
    done = {job.key(): known[job.key()] for job in jobs if job.key() in known}
    if done:
        complain(
            f"{len(done)} of {len(jobs)} results taken from {file}: same solution, workload and versions "
            "(--no-resume runs them again)"
        )
    return done


def _follow(
    results: Iterator[CheckResult],
    done: dict[str, CheckResult],
    jobs: "list[Job]",
    summary: Summary,
    write: Callable[[CheckResult], None],
) -> None:
    """Takes results as they come: recorded, shown, counted."""
    said: set[str] = set()
    for result in done.values():
        summary.add(result)
        if result.failed:
            print_failure(result, said)
    with _progress(len(jobs), len(done)) as advance:
        for result in results:
            write(result)
            summary.add(result)
            advance(result)
            if result.failed:
                print_failure(result, said)


@contextlib.contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[CheckResult], None]]:
    """A bar on a terminal; where there is none, a line for each solution and definition."""
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
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=total, completed=done)
        yield lambda result: bar.update(task, advance=1, description=f"{result.solution} {result.workload}")
