"""gdnspec check --sessions: which sessions run on which solutions, and how the results are shown."""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gdnspec.catalog.families import Family, families, same_families
from gdnspec.catalog.sessions import load_sessions, sessions, with_sessions
from gdnspec.catalog.solutions import Solution
from gdnspec.cli import session_files
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device
from gdnspec.cli.matching import matching
from gdnspec.cli.progress import progress, writer
from gdnspec.cli.selection import require_suites
from gdnspec.cli.verdicts import Summary, print_summary
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.result import CheckResult
from gdnspec.model.session_line import SESSION_SUITES, SessionLine

if TYPE_CHECKING:
    from gdnspec.sessions.check import SessionChecker, SessionJob

Selected = list[tuple[Family, SessionLine]]


@dataclass(frozen=True)
class Request:
    """The options of the command that sessions use."""

    suite: list[str] | None
    names: list[str] | None
    file: Path | None
    keyword: str | None
    fail_fast: bool
    verbose: bool
    device: str
    solutions_dir: Path | None
    json_file: Path | None
    resume: bool
    timeout: float


def refuse(definitions: list[str], given: dict[str, bool]) -> None:
    """Raises `SpecError` for definitions, and for the first option that has no meaning for sessions. `given`: whether
    each was given."""
    for name in definitions:
        what = "family" if name in families() else "definition"
        raise SpecError(f"the {what} {name!r} has no meaning with --sessions: leave it out")
    for option, there in given.items():
        if there:
            raise SpecError(f"{option} has no meaning with --sessions: leave it out")


def select(request: Request) -> Selected:
    """The sessions that the options select. Raises `SpecError` if there is none."""
    require_suites(request.suite, (*SESSION_SUITES, "all"))
    known = with_sessions()
    if not known:
        raise SpecError("no family has sessions: family.json says which definitions serve them, under `sessions`")
    if request.file is not None:
        if len(known) > 1:
            raise SpecError("--workloads holds sessions of one family, and several families have sessions")
        (family,) = known.values()
        lines = [(family, line) for line in load_sessions(request.file, family)]
    else:
        lines = [(family, line) for family in known.values() for line in sessions(family)]
    names = {line.name for _, line in lines}
    for name in request.names or ():
        if name not in names:
            raise SpecError(f"no session {name!r} ({nearest(name, sorted(names))})")
    everything = request.file is not None or request.names is not None
    suites = {*(request.suite or (SESSION_SUITES if everything else ("smoke",)))}
    suites = {*SESSION_SUITES} if "all" in suites else suites
    only = matching(request.keyword) if request.keyword is not None else None
    chosen = [
        (family, line)
        for family, line in lines
        if line.suite in suites
        and (request.names is None or line.name in request.names)
        and (only is None or only(f"{line.name} {line.suite} {line.regime}"))
    ]
    if not chosen:
        raise SpecError("no session has these names, suites and words")
    for _, line in chosen:
        if line.budget is None:
            advice = (
                f" ({session_files.command(session_files.FREEZE, request.file)} writes one)" if request.file else ""
            )
            raise SpecError(f"session {line.name!r} has no error budget, so it cannot be judged{advice}")
    return chosen


def check_sessions(
    request: Request, chosen: list[Solution], given: dict[str, list[str]], echo: Callable[[bytes], object] | None
) -> int:
    """Judges the sessions and shows the verdicts. Returns the exit code. Raises `SpecError`."""
    selected = select(request)
    flags = []
    if request.solutions_dir is not None:
        flags += ["--solutions-dir", str(request.solutions_dir.resolve())]
    if request.file is not None:
        flags += ["--workloads", str(request.file.resolve())]

    from gdnspec.check.run import Options
    from gdnspec.sessions.check import SessionChecker, plan

    where = chosen_device(request.device)
    if request.timeout != Options.timeout:
        flags += ["--timeout", f"{request.timeout:g}"]
    options = Options(request.timeout, 0, (*flags, *same_families()), given=given, echo=echo)
    serving = [one for one in chosen if any(_serves(one, family) for family, _ in selected)]
    if not serving:
        called = sorted({name for family, _ in selected for name in _called(family)})
        raise SpecError(
            f"no chosen solution serves a call of a session; sessions call {', '.join(called)} "
            "(gdnspec list solutions says which solution serves which)"
        )
    jobs = [plan(one, family, line, where) for one in serving for family, line in selected]
    to_stdout = str(request.json_file) == "-"
    reused = request.json_file if request.resume and not to_stdout else None
    planned = Counter((job.table, job.solution.name) for job in jobs)
    summary = Summary(where.name, planned)
    with contextlib.ExitStack() as stack:
        write = writer(stack, request.json_file, to_stdout)
        with contextlib.suppress(KeyboardInterrupt):
            summary.interrupted = True
            _follow(request, SessionChecker(options, warn), jobs, summary, write, reused)
            summary.interrupted = False
    if summary.interrupted:
        complain(f"gdnspec: interrupted after {summary.count} of {len(jobs)}")
    if to_stdout:
        summary.print_repeated()
    else:
        print_summary(summary)
        _print_by_the_judge(summary)
    return 130 if summary.interrupted else summary.exit_code()


def _called(family: Family) -> set[str]:
    """The definitions that its sessions call."""
    return {name for kinds in family.about.sessions.values() for name in kinds.values()}


def _serves(solution: Solution, family: Family) -> bool:
    return bool(_called(family) & {*solution.manifest.entries})


def _follow(
    request: Request, checker: "SessionChecker", jobs: "list[SessionJob]", summary: Summary,
    write: Callable[[CheckResult], None], reused: Path | None,
) -> None:  # fmt: skip
    """Writes, counts and shows results as they arrive, after those that a file already holds."""
    from gdnspec.check.record import earlier

    known = earlier(reused, warn) if reused is not None else {}
    done = {job.key(): known[job.key()] for job in jobs if job.key() in known} if known else {}
    if done:
        complain(f"{len(done)} of {len(jobs)} results taken from {reused} (--no-resume runs them again)")
    for result in done.values():
        summary.add(result)
    to_do = [job for job in jobs if job.key() not in done] if done else jobs
    with progress(len(jobs), len(done)) as advance, contextlib.closing(checker.run(to_do)) as results:
        for result in results:
            advance(result)
            write(result)
            if request.verbose and not result.failed:
                complain(f"{result.status}  {result.solution} on {result.definition}/{result.workload}")
            summary.add(result)
            if request.fail_fast and result.failed:
                complain(f"stopped at the first failure, after {summary.count} of {len(jobs)}")
                return


def _print_by_the_judge(summary: Summary) -> None:
    """Says which calls were not the solution's."""
    from gdnspec.sessions.check import BY_THE_JUDGE

    found: dict[str, set[str]] = {}
    for (_, solution), results in summary.rows.items():
        for result in results:
            found.setdefault(solution, set()).update(result.environment.get(BY_THE_JUDGE, ()))
    for solution, names in sorted(found.items()):
        if names:
            say(f"{solution}: the judge's reference made the calls of {', '.join(sorted(names))}")
