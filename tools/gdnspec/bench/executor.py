"""Runs tasks in this process or on the workers of a Ray cluster. Both yield the traces of each task as they come."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from gdnspec.bench.ceilings import ceilings
from gdnspec.bench.measure import Measurer
from gdnspec.build import machine
from gdnspec.check.plan import Job
from gdnspec.check.run import Checker, Options
from gdnspec.model.errors import SpecError
from gdnspec.model.trace import Trace

Warn = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Task:
    """A job, and the baselines that are timed in turns with it."""

    job: Job
    rivals: list[Job]


@dataclass(frozen=True)
class Settings:
    """The settings of a whole run, in JSON types: they are sent to other machines."""

    device: str  # kind
    seconds: float
    timeout: float
    seed: int
    command: str
    at_once: int  # the largest number of contestants of a task

    def measurer(self, warn: Warn) -> Measurer:
        """The measurer for this machine's device of that kind. Raises `SpecError` if there is none."""
        where = machine.device(self.device)
        if where is None:
            raise SpecError(f"this machine has no device {self.device!r}: gdnspec doctor says why")
        checker = Checker(where.kind, Options(self.timeout, self.seed), warn)
        limits = ceilings(where, warn=warn) if where.kind == "cuda" else None
        return Measurer(checker, limits, self.seconds, self.command, self.at_once)


class Watch(Protocol):
    """Gets progress reports. If several tasks run at once, `round` is not called."""

    def start(self, solution: str, workload: str) -> None: ...

    def round(self, rounds: int, spread: float) -> None: ...


class NothingToRunOn(Exception):
    """There is no device of that kind. The command ends with exit code 3."""


Measured = Generator[tuple[Task, list[Trace]], None, None]  # the trace of the job first, then those of timed baselines
Execute = Callable[[list[Task], Settings, Watch, Warn], Measured]


def executor(name: str) -> Execute:
    """The executor with that name, "local" or "ray". Raises `SpecError` if it is not installed."""
    if name == "local":
        return local
    from gdnspec.bench import ray_executor

    ray_executor.imported()
    return ray_executor.spread


def local(tasks: list[Task], settings: Settings, watch: Watch, warn: Warn) -> Measured:
    """Runs the tasks one after another in this process."""
    with settings.measurer(warn) as measurer:
        for task in tasks:
            watch.start(task.job.solution.name, task.job.workload.name)
            yield task, measurer.traces(task.job, task.rivals, watch.round)
