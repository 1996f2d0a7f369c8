"""gdnspec submit: pack a solution with the evidence for it, so that somebody else can take it in."""

import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gdnspec import paths
from gdnspec.catalog.families import same_families
from gdnspec.catalog.writing import require_file
from gdnspec.cli import offered
from gdnspec.cli.audited import print_findings
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device, require_device
from gdnspec.cli.files import replaced
from gdnspec.cli.options import CallTimeout, DefinitionsDir, DeviceName, SolutionsDir, Trusted
from gdnspec.cli.progress import progress
from gdnspec.cli.remote import client, follow
from gdnspec.cli.selection import chosen_solutions
from gdnspec.cli.verdicts import Summary, print_summary
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.result import CheckResult

if TYPE_CHECKING:
    from gdnspec.build.machine import Device
    from gdnspec.catalog.solutions import Solution
    from gdnspec.submission.evidence import Recorded, Recording
    from gdnspec.submission.judging import Terms


def submit(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The solution, or NAME:VARIANT for evidence of a variant alone.",
            autocompletion=offered.solutions,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", metavar="BUNDLE", help="The file to write.", show_default="NAME.bundle.tar")
    ] = None,
    reuse_evidence: Annotated[
        bool,
        typer.Option("--reuse-evidence", help="Run nothing; pack the evidence of the last submit of these sources."),
    ] = False,
    solutions_dir: SolutionsDir = None,
    device: DeviceName = "auto",
    timeout: CallTimeout = 120.0,
    trusted: Trusted = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Send the bundle to a gdnspec server and wait for its verdict."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token for --to.", show_default="$GDNSPEC_TOKEN")
    ] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Check a solution on every suite that runs here, time it if there is a GPU, and pack it with the results."""
    require_device(device)

    from gdnspec.submission.audit import audited
    from gdnspec.submission.bundle import folder_files, packed
    from gdnspec.submission.complete import incomplete, require_complete
    from gdnspec.submission.evidence import VERDICTS, lines_of, recorded, served_by

    solution = chosen_solutions([name], solutions_dir)[0][0]
    require_complete(solution)
    target = output or (None if to else Path(f"{name.replace(':', '-')}.bundle.tar"))
    if target is not None:
        _refuse_other_file(target)
    server = client(to, token_file) if to is not None else None  # fails before minutes are spent on evidence
    print_findings(audited(solution.manifest, folder_files(solution)))
    flags = (*(("--solutions-dir", str(solutions_dir.resolve())) if solutions_dir else ()), *same_families())
    evidence = recorded(solution) if reuse_evidence else _record(solution, device, timeout, trusted, flags)
    verdicts = lines_of(CheckResult, evidence.files[VERDICTS], Path(VERDICTS))
    if problems := incomplete(evidence.evidence, served_by(solution), verdicts):
        _stop([*problems, f"gdnspec submit {name} records evidence anew"], 2)
    data = packed(solution, evidence)
    if target is not None:
        _write(target, data)
        _say_packed(target, data, evidence)
    if server is not None:
        follow(server, data)


def _record(solution: "Solution", device: str, timeout: float, trusted: bool, flags: tuple[str, ...]) -> "Recorded":
    """Checks and times the solution. Exits with code 1 if it fails, 3 if nothing runs here."""
    from gdnspec.sandbox.parent.confinement import NotIsolated
    from gdnspec.submission import judging
    from gdnspec.submission.evidence import Recording

    where = chosen_device(device)
    terms = judging.Terms(
        where, secrets.randbits(62), timeout, judging.confinement(minutes=240, trusted=trusted),
        command=f"gdnspec submit {solution.name}", flags=flags,
    )  # fmt: skip
    with Recording(solution) as recording:
        try:
            _check(solution, terms, recording)
        except NotIsolated as missing:
            complain(f"gdnspec: isolation is reduced here: {missing}; --trusted runs your own code with less isolation")
            raise typer.Exit(3) from None
        _time(solution, terms, recording)
        return recording.finish(terms.seed, judging.environment(where))


def _check(solution: "Solution", terms: "Terms", recording: "Recording") -> None:
    from gdnspec.submission import judging
    from gdnspec.submission.evidence import served_by, unproven

    jobs, verdicts = judging.check_jobs(solution, terms), []
    summary = Summary(terms.device.name)
    with progress(len(jobs), 0) as advance:
        for result in judging.check(jobs, terms, warn):
            recording.add(result)
            verdicts.append(result)
            summary.add(result)
            advance(result)
    print_summary(summary)
    served = served_by(solution)
    failures = unproven(dict.fromkeys(served, ()), verdicts)
    if failures:
        recording.withdraw()
    if not_run := unproven(served, verdicts):
        _stop(not_run, 1 if failures else 3, "" if failures else _elsewhere(solution, terms.device))


def _time(solution: "Solution", terms: "Terms", recording: "Recording") -> None:
    from gdnspec.submission import judging

    slow = []
    for trace in judging.measure(judging.speed_jobs(solution, terms), terms, warn):
        complain(f"timed {trace.definition}/{trace.workload}: {trace.status}")
        if trace.status not in ("PASSED", "UNSUPPORTED"):
            slow.append(f"{trace.status} on {trace.definition}/{trace.workload}: {trace.message}")
        elif trace.timing is not None:
            recording.add(trace)
    if slow:
        recording.withdraw()
        _stop(slow, 1)


def _stop(problems: list[str], code: int, what_to_do: str = "") -> NoReturn:
    """Exits without a bundle, because intake would refuse it."""
    complain("gdnspec: nothing is packed:")
    for problem in [*problems, *filter(None, [what_to_do])]:
        complain(f"  {problem}")
    raise typer.Exit(code)


def _elsewhere(solution: "Solution", where: "Device") -> str:
    """How to get evidence when this machine cannot run the solution."""
    needs_gpu = solution.manifest.requires.device == "cuda" and where.kind != "cuda"
    there = "with a CUDA GPU" if needs_gpu else "that can run it"
    return f"a bundle needs verdicts: run gdnspec submit {solution.name} on a machine {there}, with --to URL to send it"


def _refuse_other_file(target: Path) -> None:
    """Raises `SpecError` if writing the bundle would overwrite a file that is not a bundle."""
    from gdnspec.submission.bundle import BUNDLE

    if not target.parent.is_dir():
        raise SpecError([Problem(target.parent, "no such folder", hint="-o BUNDLE")])
    require_file(target, "-o BUNDLE")
    if not target.exists():
        return
    if target.is_file():
        with target.open("rb") as file:
            if file.read(len(BUNDLE)) == BUNDLE.encode():
                return
    raise SpecError([Problem(target, "exists, and is not a bundle", hint="name another file with -o")])


def _write(target: Path, data: bytes) -> None:
    try:
        replaced(target, data)
    except OSError as error:
        kept = "the evidence is saved: --reuse-evidence packs it again"
        raise SpecError([Problem(target, f"cannot be written: {error.strerror}", hint=kept)]) from None


def _say_packed(target: Path, data: bytes, recorded: "Recorded") -> None:
    from gdnspec.submission.evidence import TRACES, VERDICTS, sha256

    counts = {name: data.count(b"\n") for name, data in recorded.files.items()}
    say(f"packed {paths.shown(target)}: {len(data):,} bytes, sha256 {sha256(data)}")
    speed = f"{counts[TRACES]} traces" if counts[TRACES] else "no traces, because only GPU times are ranked"
    say(f"evidence of {recorded.evidence.recorded}: {counts[VERDICTS]} verdicts, {speed}")
    say(f"next, for the reviewer: {shlex.join(['gdnspec', 'intake', paths.shown(target), *same_families()])}")
