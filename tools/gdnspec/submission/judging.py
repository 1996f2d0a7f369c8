"""A solution judged as a stranger's: on every suite that this machine can run, with workloads that nobody has seen, in
a confined process. The same for who submits and for who takes in, so that what passes there passes here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gdnspec.bench.ceilings import ceilings
from gdnspec.bench.health import driver_version
from gdnspec.bench.measure import Measurer
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import Job, plan
from gdnspec.check.run import Checker, Options
from gdnspec.inputs.fresh import fresh
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.numerics.allowed import require
from gdnspec.sandbox.parent.confinement import GIB, Confinement
from gdnspec.submission.evidence import SUITES

SPEED = "performance"
SECONDS = 10.0  # for the timing of one workload

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Terms:
    """How a solution is judged. `timeout`: seconds of one call; `seconds`: for the timing of one workload. `flags`: for
    commands that repeat a verdict; `command`: that traces name."""

    device: machine.Device
    seed: int
    timeout: float = 120.0
    confinement: Confinement = field(default_factory=Confinement)
    command: str = "gdnspec submit"
    flags: tuple[str, ...] = ()
    seconds: float = SECONDS


def confinement(minutes: float, trusted: bool = False, memory: float | None = None, disk: float = 1.0) -> Confinement:
    """For a solution of unknown origin on this machine, whose home folder is closed to it. `memory`, `disk`: GiB."""
    return Confinement(
        memory=int((memory or 0) * GIB),
        disk=int(disk * GIB),
        seconds=60 * minutes,
        closed=(Path.home(),),
        trusted=trusted,
    )


def check_jobs(solution: Solution, terms: Terms) -> list[Job]:
    """Every verdict that can be given on a solution and its variants, the quick ones first."""
    return [job for one in (solution, *solution.variants) for job in _check_jobs(one, terms)]


def _check_jobs(solution: Solution, terms: Terms) -> list[Job]:
    found = [definition(name) for name in solution.manifest.entries]
    selected = []
    for suite in SUITES:
        for item in found:
            lines = fresh(item, terms.seed, terms.device.kind) if suite == "fresh" else workloads(item)
            lines = [line for line in lines if line.suite == suite]
            require(item.definition, lines)
            selected.append((item, lines))
    return list(plan([solution], selected, terms.device))


def _options(terms: Terms) -> Options:
    return Options(terms.timeout, terms.seed, terms.flags, terms.confinement)


def check(jobs: list[Job], terms: Terms, warn: Warn) -> Iterator[CheckResult]:
    """One verdict a job, as it comes. Raises `NotIsolated` before anything of the solution has run."""
    yield from Checker(terms.device.kind, _options(terms), warn).run(jobs)


def speed_jobs(solution: Solution, terms: Terms) -> list[Job]:
    """Every trace that can be measured of a solution and its variants: the performance suites of what they serve. On a
    CPU nothing is ranked, and none is."""
    if terms.device.kind != "cuda":
        return []
    return [job for one in (solution, *solution.variants) for job in _speed_jobs(one, terms)]


def _speed_jobs(solution: Solution, terms: Terms) -> list[Job]:
    found = [definition(name) for name in solution.manifest.entries]
    lines = [(item, [line for line in workloads(item) if line.suite == SPEED]) for item in found]
    return list(plan([solution], lines, terms.device))


def measure(jobs: list[Job], terms: Terms, warn: Warn) -> Iterator[Trace]:
    """One trace a job, as it comes, checked before it is timed."""
    if not jobs:
        return
    limits = ceilings(terms.device, warn=warn) if terms.device.kind == "cuda" else None
    checker = Checker(terms.device.kind, _options(terms), warn)
    with Measurer(checker, limits, terms.seconds, terms.command, at_once=1) as measurer:
        for job in jobs:
            yield measurer.trace(job, [])


def environment(device: machine.Device) -> dict[str, str | None]:
    """What results depend on beside the sources; of a GPU its driver too."""
    return {**machine.environment(device), "driver": driver_version() if device.kind == "cuda" else None}
