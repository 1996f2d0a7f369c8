"""Turns a job into a trace: checks it first, then times it beside its baselines."""

import datetime
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType

from gdnspec.bench.health import driver_version, health
from gdnspec.bench.rounds import paired
from gdnspec.bench.speed import Contestant, Race, reserves
from gdnspec.bench.statistics import summary
from gdnspec.build.full_memory import full, out_of_memory
from gdnspec.build.machine import Device, environment
from gdnspec.catalog.traces import definition_hash
from gdnspec.check.plan import Job
from gdnspec.check.run import Checker
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model.result import CheckResult, OutputErrors, Status
from gdnspec.model.trace import METHODS, Ceilings, Health, Missing, Ratio, Timing, Trace
from gdnspec.numerics.floor import bound, floor, work
from gdnspec.sandbox.parent.process import Child
from gdnspec.sandbox.wire.arena import Arena

Told = Callable[[int, float], None]
# Races at most, while two clocks disagree: an honest process may take 0.1 ms more to answer after each longer window.
RACES = 3
INTERPRETED = "Triton's interpreter runs this solution on a CPU, so it is not timed"


class Measurer:
    """Has one child per solution, and memory for `at_once` rings. Use as a context manager."""

    def __init__(self, checker: Checker, limits: Ceilings | None, seconds: float, command: str, at_once: int) -> None:
        self.checker, self.ceilings, self.seconds, self.command = checker, limits, seconds, command
        self.at_once = at_once
        self._children: dict[str, Child] = {}
        self._reserves: list[Arena] = []
        self._results: dict[str, CheckResult] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Measurer":
        if self._on_gpu:
            self._reserves = reserves(self.at_once)
            for arena in self._reserves:
                self._stack.callback(arena.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def trace(self, job: Job, baselines: list[Job], told: Told = lambda rounds, spread: None) -> Trace:
        """The trace of one solution on one workload. A solution that fails its check is not timed."""
        return self.traces(job, baselines, told)[0]

    def traces(self, job: Job, baselines: list[Job], told: Told = lambda rounds, spread: None) -> list[Trace]:
        """Like `trace`, followed by the trace of each baseline that was timed in turns with it."""
        if job.interpreted and job.unsupported is None:
            return [self._trace(job, "UNSUPPORTED", INTERPRETED)]
        checked = self._checked(job)
        if checked.status != "PASSED":
            return [self._trace(job, checked.status, checked.message, checked)]
        against, missing = self._baselines(baselines)
        before = self._health()
        try:
            contestants = self._raced((job, *against), told)
        except InvalidWorkload as error:
            return [self._trace(job, "INVALID_WORKLOAD", str(error), checked)]
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return [self._trace(job, "UNSUPPORTED", full("judge", error), checked)]
        after = self._health()
        mine, *others = contestants
        trace = self._judged(mine, others, before, after)
        beside = [self._judged(other, [mine], before, after) for other in others if other.rounds.counted]
        return [trace.model_copy(update={"missing": missing + trace.missing}), *beside]

    # --- parts --------------------------------------------------------------------------------------------------

    def _raced(self, jobs: Sequence[Job], told: Told) -> list[Contestant]:
        """The contestants after a race, or after the last of several. Raises `MemoryError` and `InvalidWorkload`."""
        case, options = self.checker.case(jobs[0]), self.checker.options
        places = [*self._reserves, *[None] * len(jobs)]
        for race in range(1, RACES + 1):
            contestants = [
                Contestant(job, case, self._child(job), place) for job, place in zip(jobs, places, strict=False)
            ]
            Race(contestants, self.seconds, options.timeout, options.seed).run(told)
            doubted = [contestant for contestant in contestants if contestant.rounds.disagree]
            if not doubted or race == RACES:
                break
            for contestant in doubted:
                contestant.child.end()  # the next race starts it again
        return contestants

    def _baselines(self, asked: list[Job]) -> tuple[list[Job], list[Missing]]:
        """The baselines that can run here and pass their check, and why the others are left out."""
        against, missing = [], []
        for job in asked:
            if job.unsupported is not None or job.interpreted:
                why = job.unsupported or INTERPRETED
                missing.append(Missing(baseline=job.solution.name, status="UNSUPPORTED", why=why))
            elif (checked := self._checked(job)).status != "PASSED":
                missing.append(Missing(baseline=job.solution.name, status=checked.status, why=checked.message))
            else:
                against.append(job)
        return against, missing

    def _judged(self, mine: Contestant, others: list[Contestant], before: Health | None, after: Health | None) -> Trace:
        """The trace of one contestant, from a race beside others."""
        job, checked = mine.job, self._checked(mine.job)
        if mine.verdict is not None:
            return self._trace(job, mine.verdict.status, mine.verdict.message, checked)
        if not mine.rounds.counted:
            if mine.rounds:
                return self._trace(job, "SUSPECT_TIMING", mine.suspicion(None) or "", checked)
            return self._trace(job, "TIMEOUT", "no round finished in time", checked)
        timing = self._timing(mine)
        why = mine.suspicion(timing.floor)
        status: Status = "SUSPECT_TIMING" if why else "PASSED"
        lost = {other: _without(other, mine, timing.floor) for other in others}
        against = [
            Ratio(
                baseline=other.job.solution.name, baseline_hash=other.job.solution.source_hash,
                method=other.rounds.method, median=other.rounds.summary.median, ratio=found.median,
                interval=found.interval,
            )
            for other in others
            if why is None and lost[other] is None and (found := paired(other.rounds, mine.rounds))
        ]  # fmt: skip
        missing = [reason for reason in lost.values() if reason is not None]
        unclean = [f"throttled: {reason}" for h in (before, after) if h for reason in h.throttled_by]
        unclean += ["in use by others" for h in (before, after) if h and h.others]
        if timing.p10 < timing.resolved:
            unclean.append("a tenth of the samples is below the clock's resolution: the machine is busy")
        extra = {"timing": timing, "against": against, "missing": missing, "before": before, "after": after}
        said = why or _how(mine)
        return self._trace(job, status, said, checked).model_copy(
            update={**extra, "unclean": list(dict.fromkeys(unclean)), "ceilings": self.ceilings}
        )

    def _timing(self, contestant: Contestant) -> Timing:
        call, found = work(contestant.job.found, contestant.job.workload), contestant.rounds.summary
        limits = self.ceilings
        seconds, by = bound(call, limits) if limits and call.all_needed else (None, None)
        assert contestant.ring is not None
        return Timing(
            method=contestant.rounds.method, median=found.median, p10=found.p10, p90=found.p90, interval=found.interval,
            samples=found.count, calls=3 * contestant.calls * found.count, ring_bytes=contestant.ring.nbytes,
            host=summary(contestant.host).median if contestant.host else None, prepare=contestant.prepare,
            witness=contestant.rounds.witness,
            bytes=call.bytes, operations=call.operations, floor=floor(call, limits) if limits else None,
            bound=seconds, bound_by=by, verification=contestant.verification, timed=contestant.timed,
        )  # fmt: skip

    def _trace(self, job: Job, status: Status, message: str, checked: CheckResult | None = None) -> Trace:
        outputs = checked.outputs if checked else []
        return untimed(job, job.device, self.checker.options.seed, self.command, status, message, outputs)

    def _checked(self, job: Job) -> CheckResult:
        """The cached result of a job's check: a baseline runs on the same workload beside every solution."""
        key = job.key()
        if key not in self._results:
            self._results[key] = self.checker.result(job, self._child(job), {})
        return self._results[key]

    def _child(self, job: Job) -> Child:
        name = job.solution.name
        if name not in self._children:
            self._children[name] = self._stack.enter_context(self.checker.child(job))
        return self._children[name]

    @property
    def _on_gpu(self) -> bool:
        return self.checker.device == "cuda"

    def _health(self) -> Health | None:
        return health(1 + len(self._children)) if self._on_gpu else None


def _how(mine: Contestant) -> str:
    """What is unusual about the timing, in words; "" if nothing is."""
    if mine.why_no_graph is not None:
        counted = "; the time includes copying its outputs" if mine.job.entry.call == "return" else ""
        return f"timed by events, because no graph can be captured: {mine.why_no_graph}{counted}"
    if mine.graph is not None and mine.graph.copied:
        return "the time includes copying its outputs, because no other process can open their memory"
    return ""


def _without(other: Contestant, mine: Contestant, floor: float | None) -> Missing | None:
    """Why a raced baseline has no ratio, or None. `floor`: of the call, which is the same for both."""
    name = other.job.solution.name
    if other.verdict is not None:
        return Missing(baseline=name, status=other.verdict.status, why=other.verdict.message)
    if not other.rounds:
        return Missing(baseline=name, status="TIMEOUT", why="no round finished in time")
    if suspicion := other.suspicion(floor):
        return Missing(baseline=name, status="SUSPECT_TIMING", why=suspicion)
    if other.rounds.method != mine.rounds.method:
        why = f"{METHODS[other.rounds.method]}, beside {METHODS[mine.rounds.method]}"
        return Missing(baseline=name, status="PASSED", why=f"{why}: {other.why_no_graph or mine.why_no_graph}")
    if paired(other.rounds, mine.rounds) is None:
        return Missing(
            baseline=name, status="PASSED", why="no round in which both took longer than the clock's resolution"
        )
    return None


def untimed(
    job: Job, where: Device, seed: int, command: str, status: Status, message: str, outputs: Iterable[OutputErrors] = ()
) -> Trace:
    """A trace without figures, for a job that has none, or as a base to add them."""
    found, workload = job.found, job.workload
    return Trace(
        schema_version=1, definition=found.definition.name, definition_version=found.definition.version,
        definition_hash=definition_hash(found),
        workload=workload.name, suite=workload.suite, preset=workload.preset, regime=workload.regime,
        axes=workload.axes, sequence_lengths=workload.sequence_lengths, solution=job.solution.name,
        source_hash=job.solution.source_hash, device=where.slug,
        recorded=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), command=command,
        seed=seed, status=status, message=message, outputs=list(outputs),
        environment={**environment(where), "driver": driver_version() if where.kind == "cuda" else None},
    )  # fmt: skip
