"""Judge a solution of unknown origin: on every suite that this machine can run, on fresh workloads, in a confined
process. `submit` and `intake` both use this module, so that a solution that passes one also passes the other."""

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
SECONDS = 10.0  # per timed workload

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Terms:
    """How a solution is judged. `timeout`: seconds of one call. `seconds`: for the timing of one workload. `flags`:
    options for the commands that repeat a verdict. `command`: the command that traces record."""

    device: machine.Device
    seed: int
    timeout: float = 120.0
    confinement: Confinement = field(default_factory=Confinement)
    command: str = "gdnspec submit"
    flags: tuple[str, ...] = ()
    seconds: float = SECONDS


def confinement(minutes: float, trusted: bool = False, memory: float | None = None, disk: float = 1.0) -> Confinement:
    """The limits for a solution of unknown origin. It cannot read the home folder. `memory`, `disk`: GiB."""
    return Confinement(
        memory=int((memory or 0) * GIB),
        disk=int(disk * GIB),
        seconds=60 * minutes,
        closed=(Path.home(),),
        trusted=trusted,
    )


def check_jobs(solution: Solution, terms: Terms) -> list[Job]:
    """The jobs that check a solution and its variants on every suite, the quick ones first."""
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
    """Yields one verdict per job. Raises `NotIsolated` before any code of the solution runs."""
    yield from Checker(terms.device.kind, _options(terms), warn).run(jobs)


def speed_jobs(solution: Solution, terms: Terms) -> list[Job]:
    """The jobs that time a solution and its variants on their performance suites. None on a CPU, whose times are never
    ranked."""
    if terms.device.kind != "cuda":
        return []
    return [job for one in (solution, *solution.variants) for job in _speed_jobs(one, terms)]


def _speed_jobs(solution: Solution, terms: Terms) -> list[Job]:
    found = [definition(name) for name in solution.manifest.entries]
    lines = [(item, [line for line in workloads(item) if line.suite == SPEED]) for item in found]
    return list(plan([solution], lines, terms.device))


def measure(jobs: list[Job], terms: Terms, warn: Warn) -> Iterator[Trace]:
    """Yields one trace per job. Each job is checked before it is timed."""
    if not jobs:
        return
    limits = ceilings(terms.device, warn=warn) if terms.device.kind == "cuda" else None
    checker = Checker(terms.device.kind, _options(terms), warn)
    with Measurer(checker, limits, terms.seconds, terms.command, at_once=1) as measurer:
        for job in jobs:
            yield measurer.trace(job, [])


def environment(device: machine.Device) -> dict[str, str | None]:
    """What results depend on apart from the sources: versions, the device, and the driver of a GPU."""
    return {**machine.environment(device), "driver": driver_version() if device.kind == "cuda" else None}
