"""gdnspec check: check whether solutions are correct."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.families import same_families
from gdnspec.cli import amounts
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device
from gdnspec.cli.extras import print_errors, print_symmetries
from gdnspec.cli.options import (
    CallTimeout,
    Definitions,
    DefinitionsDir,
    DeviceName,
    Solutions,
    SolutionsDir,
    Workloads,
    WorkloadsFile,
)
from gdnspec.cli.progress import progress, writer
from gdnspec.cli.selection import chosen_solutions, select
from gdnspec.cli.verdicts import Summary, print_failure, print_summary
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import SUITES, Workload

if TYPE_CHECKING:
    from gdnspec.build.machine import Device
    from gdnspec.catalog.solutions import Solution
    from gdnspec.check.plan import Extras, Job


SuitesAndFresh = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{', '.join(SUITES)}, fresh or all; repeatable. Fresh workloads are added to each.",
        show_default="smoke, or all with --workload",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Append each result as a line of JSON, and reuse results that the file holds; - is stdout.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=(1 << 62) - 1,
        help="Seed of fresh workloads and of the content of second calls.",
        show_default="new in each run",
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=amounts.REPEATS,
        help="Repeat each call this often with the same content, and beside other work.",
        show_default="20 on a GPU, within 1 s; 0 on a CPU",
    ),
]


def check(
    names: Definitions = None,
    solution: Solutions = None,
    suite: SuitesAndFresh = None,
    workload: Workloads = None,
    workloads_file: WorkloadsFile = None,
    device: DeviceName = "auto",
    solutions_dir: SolutionsDir = None,
    json_file: Results = None,
    resume: Annotated[bool, typer.Option(help="Reuse results in FILE for the same sources and workload.")] = True,
    timeout: CallTimeout = 120.0,
    seed: Seed = None,
    symmetries: Annotated[
        bool, typer.Option("--symmetries", help="Check each symmetry by itself, and sequences permuted, alone, split.")
    ] = False,
    repeat: Repeat = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Report errors by regime and by position in the sequence.")
    ] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Check solutions for correctness on a definition's workloads, and on newly drawn ones."""
    # A solution cannot be prepared for a seed that nobody knew before.
    drawn = secrets.randbits(62) if seed is None else seed

    def fresh(item: Found) -> list[Workload]:
        from gdnspec.inputs.fresh import fresh

        return fresh(item, drawn, chosen_device(device).kind)

    from gdnspec.check.plan import Extras
    from gdnspec.check.run import Checker, Options

    selected = select(names, suite, workload, workloads_file, fresh)
    chosen, broken = chosen_solutions(solution, solutions_dir)

    where = chosen_device(device)
    jobs = _jobs(chosen, selected, where, Extras(symmetries, errors, repeat))
    options = Options(timeout, drawn, tuple(_flags(solutions_dir, workloads_file, symmetries, timeout)))
    checker = Checker(where.kind, options, warn)
    summary = Summary(where.name)
    to_stdout = str(json_file) == "-"
    with contextlib.ExitStack() as stack:
        write = writer(stack, json_file, to_stdout)
        done = _earlier(json_file, jobs) if resume and json_file is not None and not to_stdout else {}
        try:
            _follow(checker.run([job for job in jobs if job.key() not in done]), done, jobs, summary, write)
        except KeyboardInterrupt:
            summary.interrupted = True
    if not to_stdout:
        print_summary(summary)
        if done:
            say(f"{len(done)} of {len(jobs)} results were taken from {json_file}")
        if symmetries:
            print_symmetries(summary)
        if errors:
            print_errors(summary, selected)
    if summary.interrupted:
        kept = f"; {json_file} holds the results so far, and the same command continues from there" if json_file else ""
        complain(f"gdnspec: interrupted after {summary.count} of {len(jobs)}{kept}")
        raise typer.Exit(130)
    for problem in broken:
        complain(f"gdnspec: {problem}")
    raise typer.Exit(2 if broken else summary.exit_code())


def _jobs(
    chosen: "list[Solution]", selected: list[tuple[Found, list[Workload]]], where: "Device", extras: "Extras"
) -> "list[Job]":
    """The jobs of each solution. Raises `SpecError` if no solution serves the chosen definitions."""
    from gdnspec.check.plan import plan
    from gdnspec.numerics.allowed import require

    for item, lines in selected:
        require(item.definition, lines)
    jobs = list(plan(chosen, selected, where, extras))
    if not jobs:
        served = ", ".join(found.definition.name for found, _ in selected)
        raise SpecError(f"no chosen solution serves {served}: see gdnspec list solutions")
    return jobs


def _flags(solutions_dir: Path | None, workloads_file: Path | None, symmetries: bool, timeout: float) -> Iterator[str]:
    """The options that a command needs to repeat one workload in the same way."""
    from gdnspec.check.run import Options

    if solutions_dir is not None:
        yield from ("--solutions-dir", str(solutions_dir.resolve()))
    if workloads_file is not None:
        yield from ("--workloads", str(workloads_file.resolve()))
    if symmetries:
        yield "--symmetries"
    if timeout != Options.timeout:
        yield from ("--timeout", f"{timeout:g}")
    yield from same_families()


def _earlier(file: Path, jobs: "list[Job]") -> dict[str, CheckResult]:
    from gdnspec.check.record import earlier

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
    """Writes, counts and shows results as they arrive, after those that are already `done`."""
    said: set[str] = set()
    for result in done.values():
        summary.add(result)
        if result.failed:
            print_failure(result, said)
    with progress(len(jobs), len(done)) as advance:
        for result in results:
            write(result)
            summary.add(result)
            advance(result)
            if result.failed:
                print_failure(result, said)
