"""Tests the judge: it must reject every known-bad solution, and accept every honest one with a margin."""

import contextlib
import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from gdnspec.build import machine
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.catalog.faults import Bad
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import ONCE, Extras, Job, interpreted, plan, token_programs
from gdnspec.check.run import Checker, Options
from gdnspec.inputs.fresh import fresh
from gdnspec.model import roles
from gdnspec.model.budget import MARGIN, STRICT_MARGIN
from gdnspec.model.errors import nearest
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload
from gdnspec.sandbox.wire.lifetime import die_with

SUITES = ("smoke", "conformance", "strict", "fresh")
SAMPLE = ("smoke", "strict", "fresh")  # for honest solutions, unless the trial is complete
PAIRS = 65535  # of sequence and head: a workload with more counts as long
LONG = 2100  # tokens: longer workloads run only for honest solutions and for faults that need them


@dataclass(frozen=True)
class Task:
    """The trial of one solution. `longest`: limit of a workload in tokens. `repeats`: of each call; None means the
    default of the device. `suites`: which to run. `until_rejected`: skip the rest of a definition after a workload
    rejected the solution; workloads in `killed_by` run first, and all of them run."""

    solution: Solution
    longest: float
    device: str
    timeout: float
    seed: int
    repeats: int | None = None
    suites: tuple[str, ...] = SUITES
    until_rejected: bool = False
    killed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """The settings for all solutions. `complete`: run all workloads, even after one rejected a wrong solution."""

    device: str
    timeout: float
    seed: int
    complete: bool


def honest_task(solution: Solution, trial: Trial) -> Task:
    """The trial of an honest solution, with long workloads. Unless it is complete, only the suites in SAMPLE."""
    suites = SUITES if trial.complete else SAMPLE
    return Task(solution, math.inf, trial.device, trial.timeout, trial.seed, suites=suites)


def bad_task(bad: Bad, trial: Trial) -> Task:
    """The trial of a wrong solution. One that must fail only in some suites runs on all workloads."""
    known = bad.known
    longest = math.inf if known.long_workloads else LONG
    short = not trial.complete and not known.only_in
    return Task(
        bad.solution, longest, trial.device, trial.timeout, trial.seed, known.repeats,
        until_rejected=short, killed_by=tuple(known.killed_by),
    )  # fmt: skip


THREADS = "OMP_NUM_THREADS"  # of a process and its children


@contextlib.contextmanager
def _shared_processors(jobs: int) -> Iterator[None]:
    """Limits the threads of new processes, so that together they have as many as there are processors, unless the user
    set a number. With two threads each, two jobs on two processors took 216 s, up from 33 s."""
    given = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, str(max(1, len(os.sched_getaffinity(0)) // jobs)))
    try:
        yield
    finally:
        if given is None:
            del os.environ[THREADS]


def run(tasks: list[Task], jobs: int) -> Iterator[tuple[Solution, list[CheckResult]]]:
    """Yields results as soon as they are known. It runs `jobs` solutions at a time."""
    # "spawn" and not "fork": torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with _shared_processors(jobs), ProcessPoolExecutor(jobs, context, die_with, (os.getpid(),)) as pool:
        try:
            futures = {pool.submit(_run, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future].solution, future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_checkers: dict[tuple[str, float, int], Checker] = {}


def _run(task: Task) -> list[CheckResult]:
    device = machine.device(task.device)
    assert device is not None
    # One checker for all tasks of this process, because it caches cases.
    key = (task.device, task.timeout, task.seed)
    checker = _checkers.setdefault(key, Checker(task.device, Options(task.timeout, task.seed), lambda message: None))
    jobs = list(plan([task.solution], selected(task, device), device, Extras(repeats=task.repeats)))
    return list(_until_rejected(task, checker, jobs) if task.until_rejected else checker.run(jobs))


def _until_rejected(task: Task, checker: Checker, jobs: list[Job]) -> Iterator[CheckResult]:
    """The results until each definition has rejected the solution."""
    jobs = sorted(jobs, key=lambda job: job.workload.name not in task.killed_by)
    rejected: set[str] = set()
    deaths: dict[str, int] = {}
    with checker.child(jobs[0]) as child:
        for job in jobs:
            name = job.found.definition.name
            if name in rejected and job.workload.name not in task.killed_by:
                continue
            result = checker.result(job, child, deaths)
            if result.failed:
                rejected.add(name)
            yield result


def selected(task: Task, device: machine.Device) -> list[tuple[Found, list[Workload]]]:
    """The workloads for a solution. An interpreted one skips large workloads: they take minutes."""
    slow = interpreted(task.solution, device)

    def chosen(found: Found, line: Workload) -> bool:
        scope = line.scope(found.definition, preset_of(found, line))
        definition = found.definition
        packed = roles.axis(definition, "tokens") or roles.axis(definition, "rows")
        rows = roles.batch(definition, line.axes)
        short = line.axes.get(packed or "", 0) <= task.longest
        short = short and (rows * roles.heads(definition, scope) <= PAIRS or math.isinf(task.longest))
        return line.suite in task.suites and short and not (slow and token_programs(definition, scope) > ONCE)

    return [
        (found, [line for line in (*workloads(found), *fresh(found, task.seed, task.device)) if chosen(found, line)])
        for name, found in definitions().items()
        if name in task.solution.manifest.entries
    ]


# --- evaluation of results --------------------------------------------------------------------------------------


def strength(result: CheckResult) -> float:
    """How far a failure is from passing: error over budget; infinite if no numbers were compared; 0 if it passed."""
    if not result.failed:
        return 0.0
    shares = list(_shares(result))
    return max(shares) if shares and max(shares) > 1 else math.inf


def margin(results: Iterable[CheckResult]) -> float:
    """The smallest ratio of budget to error among passed results."""
    worst = max((share for result in results if result.status == "PASSED" for share in _shares(result)), default=0.0)
    return math.inf if worst == 0 else 1 / worst


def _shares(result: CheckResult) -> Iterator[float]:
    for output in result.outputs:
        for metric, limit in output.budget.items():
            error = output.errors.get(metric)
            yield math.inf if error is None else error / limit


def complaints_about_bad(bad: Bad, results: list[CheckResult]) -> Iterator[str]:
    """The reasons why the judge treats a wrong solution incorrectly, in words."""
    known, name = bad.known, bad.solution.name
    killers = {result.workload for result in results if result.failed}
    for definition in bad.solution.manifest.entries:
        if not any(result.failed for result in results if result.definition == definition):
            yield f"{name} survives every workload of {definition}: {known.fault}"
    for result in results:
        if result.failed and result.status not in known.statuses:
            wanted = " or ".join(known.statuses)
            yield f"{name} on {result.definition}/{result.workload} is {result.status}, not {wanted}: {result.message}"
        if known.only_in and result.failed and result.suite not in known.only_in:
            yield f"{name} fails on {result.workload}, outside {', '.join(known.only_in)}: {result.message}"
    tried = {result.workload for result in results}
    for workload in known.killed_by:
        if workload not in tried:
            yield f"{name}: killed_by names {workload!r}, which was not tried ({nearest(workload, tried)})"
        elif workload not in killers:
            yield f"{name} passes {workload}, which must reject it"
    if known.only_in:
        yield from _thin(name, [result for result in results if result.suite not in known.only_in])


def complaints_about_honest(solution: Solution, results: list[CheckResult]) -> Iterator[str]:
    """The reasons why the judge treats a correct solution incorrectly. Strict failures count only with the badge."""
    ordinary = [result for result in results if result.suite != "strict"]
    strict = [result for result in results if result.suite == "strict"]
    for result in ordinary:
        if result.failed:
            where = f"{result.definition}/{result.workload}"
            again = result.message.startswith("on a second call")
            or_else = f" (or a symmetry of {result.definition} is none: check --symmetries tries each)" if again else ""
            yield f"{solution.name} is honest but gets {result.status} on {where}{or_else}: {result.message}"
    yield from _thin(solution.name, ordinary)
    if has_badge(results):
        yield from _thin(solution.name, strict)


def has_badge(results: list[CheckResult]) -> bool:
    """Whether the solution passes every strict workload that could run."""
    strict = [result for result in results if result.suite == "strict"]
    return any(result.status == "PASSED" for result in strict) and not any(result.failed for result in strict)


def _thin(name: str, results: list[CheckResult]) -> Iterator[str]:
    for result in results:
        wanted = STRICT_MARGIN if result.suite == "strict" else MARGIN
        if margin([result]) < wanted:
            yield (
                f"{name} has a margin of {margin([result]):.2f} on {result.definition}/{result.workload}: an honest "
                f"solution needs {wanted}"
            )


def best_killers(results: dict[str, list[CheckResult]]) -> dict[str, CheckResult]:
    """For each known-bad solution, the failure that is furthest from passing; the first in suite order if several are
    equal. A fresh workload counts only if no other rejects it, because it differs in each run."""
    best = {}
    for name, mine in results.items():
        failures = [result for result in mine if result.failed]
        if failures:
            best[name] = max(failures, key=lambda result: (result.suite != "fresh", strength(result)))
    return best
