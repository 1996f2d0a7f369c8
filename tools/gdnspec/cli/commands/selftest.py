"""gdnspec selftest: test the judge itself."""

import contextlib
import os
import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.families import families
from gdnspec.catalog.faults import Bad, honest, known_bad, of_family, rejections
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.writing import require_file
from gdnspec.cli.console import complain, print_table, say
from gdnspec.cli.device import chosen_device, require_device
from gdnspec.cli.options import CallTimeout, DefinitionsDir, DeviceName
from gdnspec.cli.session_selftest import ALL, refuse, session_selftest
from gdnspec.model.errors import SpecError, near_ones

if TYPE_CHECKING:
    from gdnspec.check.selftest import Task
    from gdnspec.model.result import CheckResult

    Results = dict[str, list[CheckResult]]


EveryWorkload = Annotated[
    bool | None,
    typer.Option(
        "--every-workload/--until-rejected",
        help="Try each wrong solution on every workload, or only until one rejects it, which takes a "
        "fraction of the time.",
        show_default="every workload for solutions that are named, until rejected for all",
    ),
]
Matrix = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Put the kill matrix into a new file, or between the marks of this one. Tries every workload.",
    ),
]


def selftest(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Known-bad or honest solutions, or a family for its known-bad ones; all if you name none.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=256, help="Solutions that run at a time.", show_default="one per processor")
    ] = None,
    device: DeviceName = "cpu",
    timeout: CallTimeout = 60.0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=(1 << 62) - 1, help="Seed of the content of second calls.", show_default="new"),
    ] = None,
    every_workload: EveryWorkload = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write each result to FILE as a line of JSON.")
    ] = None,
    markdown: Matrix = None,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="Try wrong schedulers, and wrong kernels that only sessions see, instead."),
    ] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Test the judge: it must reject every known-bad solution and accept every honest one.

    Honest solutions run on the smoke, strict and fresh suites. With --every-workload they run on all suites, and the
    output shows which workload rejects which solution. With --sessions the sessions that must reject a fault are
    tried, or all of them with --every-workload. Exit code 1 if a wrong or cheating solution passes or is
    rejected for another reason than its fault, or if an honest one fails or comes too close to a budget.
    """
    require_device(device)
    if sessions:
        refuse({"--device": device != "cpu", "--seed": seed is not None, "--json": json_file is not None,
                "--markdown": markdown is not None})  # fmt: skip
        jobs = jobs or len(os.sched_getaffinity(0))
        raise typer.Exit(0 if session_selftest(list(names or ()), jobs, bool(every_workload)) else 1)
    if json_file is not None:
        require_file(json_file, "--json FILE")
    if markdown is not None and every_workload is False:
        raise SpecError("--markdown needs every workload: leave out --until-rejected")
    good = honest()
    names = _known(names, good)
    bad = known_bad(names or None)
    good = [solution for solution in good if not names or solution.name in names]
    where = chosen_device(device)

    from gdnspec.check.selftest import Trial, bad_task, honest_task
    from gdnspec.cli import matrix

    if markdown is not None:
        matrix.require_place(markdown)
    complete = markdown is not None or (bool(names) if every_workload is None else every_workload)
    drawn = secrets.randbits(62) if seed is None else seed
    trial = Trial(where.kind, timeout, drawn, complete)
    tasks = [honest_task(solution, trial) for solution in good] + [bad_task(item, trial) for item in bad]
    results = _collect(tasks, jobs or len(os.sched_getaffinity(0)), json_file)
    complaints = _complaints(bad, good, results)
    if complete and not names:
        complaints += list(matrix.idle_workloads(bad, results))
    print_table(matrix.honest_table(good, results))
    say()
    print_table(matrix.bad_table(bad, results))
    if complete and not names:
        say()
        print_table(matrix.workload_table(bad, results))
    if markdown is not None:
        matrix.write(markdown, bad, good, results)
    for complaint in complaints:
        complain(f"gdnspec: {complaint}", style="red")
    rejected = sum(any(r.failed for r in results[b.solution.name]) for b in bad)
    say(f"{rejected} of {len(bad)} known-bad solutions rejected; {len(complaints)} complaints; seed {drawn}")
    raise typer.Exit(1 if complaints else 0)


def _known(names: list[str] | None, good: list[Solution]) -> list[str]:
    """The names, with those of a family in its place. Raises `SpecError` for one that nothing has."""
    found = [one for name in names or () for one in of_family(name) or [name]]
    everything = [*rejections(), *(solution.name for solution in good)]
    for name in found:
        if name not in everything:
            hint = near_ones(name, [*everything, *families()], ALL)
            raise SpecError(f"no known-bad or honest solution {name!r} ({hint})")
    return found


def _collect(tasks: "list[Task]", jobs: int, json_file: Path | None) -> "Results":
    from gdnspec.check.selftest import run

    results: Results = {}
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(json_file.open("w", encoding="utf-8")) if json_file else None
        for solution, mine in run(tasks, jobs):
            results[solution.name] = mine
            counts = Counter(result.status for result in mine)
            said = ", ".join(f"{count} {status}" for status, count in counts.most_common())
            complain(f"{len(results)} of {len(tasks)}: {solution.name}: {said}")
            for result in mine if file else ():
                print(result.model_dump_json(), file=file, flush=True)
    return results


def _complaints(bad: list[Bad], good: list[Solution], results: "Results") -> list[str]:
    from gdnspec.check.selftest import complaints_about_bad, complaints_about_honest

    found = [c for item in bad for c in complaints_about_bad(item, results[item.solution.name])]
    return found + [c for solution in good for c in complaints_about_honest(solution, results[solution.name])]
