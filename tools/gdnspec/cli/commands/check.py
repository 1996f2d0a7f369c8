"""gdnspec check: is a solution correct?"""

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
from gdnspec.cli.outside import DefinitionsDir
from gdnspec.cli.progress import progress, writer
from gdnspec.cli.selection import chosen_solutions, select
from gdnspec.cli.verdicts import Summary, print_failure, print_summary
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import SUITES, Workload

if TYPE_CHECKING:
    from gdnspec.check.plan import Job


def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="DEFINITION", help="None named: all.")] = None,
    solution: Annotated[list[str] | None, typer.Option(help="Only this solution; may be repeated.")] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(SUITES)}, fresh or all; may be repeated. Fresh workloads join each.",
            show_default="smoke, or all with --workload",
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
    timeout: Annotated[
        float, typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds that one call may take.")
    ] = 120.0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=(1 << 62) - 1,
            help="Of the fresh workloads and the second calls' content.",
            show_default="a new one each run",
        ),
    ] = None,
    symmetries: Annotated[
        bool, typer.Option("--symmetries", help="Check each symmetry by itself, and sequences permuted, alone, split.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=amounts.REPEATS,
            help="Call each workload so often again with the same content, and beside other work.",
            show_default="20 on a GPU, within 1 s; 0 on a CPU",
        ),
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Report errors by regime and by position in the sequence.")
    ] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Check solutions for correctness on a definition's workloads, and on fresh ones that nobody has seen."""
    # Nobody can prepare for what nobody knew.
    drawn = secrets.randbits(62) if seed is None else seed

    def fresh(item: Found) -> list[Workload]:
        from gdnspec.inputs.fresh import fresh

        return fresh(item, drawn, chosen_device(device).kind)

    selected = select(names, suite, workload, workloads_file, fresh)
    chosen, broken = chosen_solutions(solution, solutions_dir)

    from gdnspec.check.plan import Extras, plan
    from gdnspec.check.run import Checker, Options
    from gdnspec.numerics.allowed import require

    for item, lines in selected:
        require(item.definition, lines)
    where = chosen_device(device)
    extras = Extras(symmetries, errors, repeat)
    jobs = list(plan(chosen, selected, where, extras))
    if not jobs:
        served = ", ".join(f.definition.name for f, _ in selected)
        raise SpecError(f"no solution serves {served}: gdnspec list solutions")
    flags = ["--solutions-dir", str(solutions_dir.resolve())] if solutions_dir else []
    flags += ["--workloads", str(workloads_file.resolve())] if workloads_file else []
    flags += ["--symmetries"] if symmetries else []
    flags += ["--timeout", f"{timeout:g}"] if timeout != Options.timeout else []
    options = Options(timeout, drawn, (*flags, *same_families()))
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
        kept = f"; what was judged is in {json_file}, the same command goes on" if json_file else ""
        complain(f"gdnspec: interrupted after {summary.count} of {len(jobs)}{kept}")
        raise typer.Exit(130)
    for problem in broken:
        complain(f"gdnspec: {problem}")
    if broken:
        raise typer.Exit(2)
    raise typer.Exit(summary.exit_code())


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
    """Takes results as they come: recorded, shown, counted."""
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
