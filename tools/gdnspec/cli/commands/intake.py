"""gdnspec intake: judge a bundle from somebody else, and admit it if it passes."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec import paths
from gdnspec.catalog.families import same_families
from gdnspec.cli import amounts
from gdnspec.cli.audited import print_findings
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device
from gdnspec.cli.options import CallTimeout, DefinitionsDir, DeviceName, Trusted
from gdnspec.cli.verdicts import Summary, print_summary
from gdnspec.model.errors import SpecError, visible
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.report.units import shown_time

if TYPE_CHECKING:
    from gdnspec.submission.finding import Finding


def intake(
    file: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle that gdnspec submit packed.")],
    into: Annotated[
        Path | None, typer.Option(help="Copy it into this folder of solutions; default: solutions/.")
    ] = None,
    device: DeviceName = "auto",
    allow_findings: Annotated[
        bool,
        typer.Option("--allow-findings", help="Run it in spite of the audit's findings. Read its sources first."),
    ] = False,
    no_bench: Annotated[
        bool, typer.Option("--no-bench", help="Admit it without verifying the times that it claims.")
    ] = False,
    trusted: Trusted = False,
    timeout: CallTimeout = 120.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=amounts.GIB,
            help="GiB of memory for all its processes together.",
            show_default="3/4 of the machine's memory, at most 16",
        ),
    ] = None,
    disk: Annotated[float, typer.Option(min=0.01, max=amounts.GIB, help="GiB that it may write to disk.")] = 1.0,
    minutes: Annotated[
        float, typer.Option(min=0.01, max=amounts.MINUTES, help="Minutes that its process may run.")
    ] = 60.0,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Judge a bundle from somebody else: audit its sources, check it in isolation, and measure the times that it
    claims. If all of this passes, copy it into the folder of solutions.

    The code of a family runs inside the judge, so a bundle cannot bring one: --definitions-dir names your own copy.
    """
    target = into or paths.solutions_dir()
    if into is None and "site-packages" in target.parts:
        raise SpecError("this gdnspec is installed and has no folder of solutions: name one with --into DIR")

    from gdnspec.submission.admission import refuse_taken
    from gdnspec.submission.bundle import read

    bundle = read(file)
    refuse_taken(bundle.solution.name, target)

    from gdnspec.sandbox.parent.confinement import NotIsolated
    from gdnspec.submission import judging
    from gdnspec.submission.intake import Policy, Refused, Unverified, take_in

    where = chosen_device(device)
    confinement = judging.confinement(minutes, trusted, memory, disk)
    terms = judging.Terms(
        where, secrets.randbits(62), timeout, confinement, command="gdnspec intake", flags=same_families()
    )
    told = _Told(where.name)
    try:
        admitted = take_in(bundle, target, terms, Policy(allow_findings, no_bench), told)
    except Refused as refused:
        told.show()
        complain(f"gdnspec: refused: {paths.shown(file)}")
        for reason in refused.reasons:
            complain(f"  {visible(reason)}")
        raise typer.Exit(1) from None
    except Unverified as unverified:
        told.show()
        complain(f"gdnspec: not admitted: {visible(str(unverified))}")
        complain("  run gdnspec intake on a machine that can verify this; --no-bench admits it without times")
        raise typer.Exit(3) from None
    except NotIsolated as missing:
        complain(f"gdnspec: not run: isolation is reduced here: {missing}; --trusted runs it with less isolation")
        raise typer.Exit(3) from None
    told.show()
    speed = f"{admitted.claimed} claimed times verified" if admitted.claimed else "no claimed times"
    say(f"accepted: {paths.shown(admitted.folder)}/: {len(admitted.verdicts)} verdicts, seed {terms.seed}, {speed}")


class _Told:
    """A `Watcher` that prints what happens, and counts verdicts."""

    def __init__(self, device: str) -> None:
        self.summary = Summary(device)

    def found(self, findings: "list[Finding]") -> None:
        print_findings(findings)

    def started(self, total: int) -> None:
        complain(f"checking it on {total} workloads, in an isolated process")

    def judged(self, result: CheckResult) -> None:
        self.summary.add(result)

    def measured(self, trace: Trace) -> None:
        took = shown_time(trace.timing.median) if trace.timing else trace.message
        complain(f"timed {trace.definition}/{trace.workload}: {trace.status} {took}")

    def warned(self, text: str) -> None:
        warn(text)

    def show(self) -> None:
        if self.summary.count:
            print_summary(self.summary)
