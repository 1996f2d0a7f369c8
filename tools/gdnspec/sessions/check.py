"""Judges solutions on sessions: one child process per solution, one verdict per session."""

import hashlib
import json
import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from itertools import groupby

from torch import Tensor

from gdnspec import __version__
from gdnspec.build.full_memory import full, out_of_memory
from gdnspec.build.machine import Device, environment, lacking
from gdnspec.build.reference import code_hash
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.families import Family
from gdnspec.catalog.sessions import names, serving
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.supports import unmet
from gdnspec.check.call import Content, Session
from gdnspec.check.plan import INTERPRETER_LIMIT, Job, interpreted, judge_hash
from gdnspec.check.run import DEATHS_IN_A_ROW, Options
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model import roles
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult, OutputErrors, Status
from gdnspec.model.session_line import SessionLine
from gdnspec.model.workload import Workload
from gdnspec.numerics.judge import Verdict, judge
from gdnspec.numerics.threads import one_thread
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sessions.case import Case
from gdnspec.sessions.follow import Pair, follow
from gdnspec.sessions.honest import reference
from gdnspec.sessions.kernels import Run
from gdnspec.sessions.token_streams import preset_of

BY_THE_JUDGE = "by_the_judge"  # in a result's environment: the calls that the judge's reference made


class NotServed(Exception):
    """The solution does not support a call of a session. The message says why."""


class CallFault(Exception):
    """A call whose answer needs no comparison of numbers."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass(frozen=True, eq=False)
class SessionJob:
    """One session of one solution. `unsupported`: why it cannot run, or None."""

    solution: Solution
    family: Family
    line: SessionLine
    device: Device
    unsupported: str | None = None

    @property
    def table(self) -> str:
        """What stands in the place of a definition."""
        return f"{self.family.name}/sessions"

    def key(self) -> str:
        """A hash of everything that the verdict depends on."""
        served = serving(self.family, self.line).values()
        parts = [
            __version__, code_hash(self.family), judge_hash(), self.solution.source_hash,
            [found.definition.model_dump(mode="json") for found in served], self.line.model_dump(mode="json"),
            preset_of(self.family, self.line).model_dump(mode="json"), environment(self.device),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def plan(solution: Solution, family: Family, line: SessionLine, device: Device) -> SessionJob:
    """The job, with the reason if it cannot run."""
    called = {kind: name for kind, name in names(family, line).items() if kind in line.kinds}
    mine = [kind for kind, name in called.items() if name in solution.manifest.entries]
    why = lacking(solution.manifest, device)
    if why is None and not mine:
        why = f"the solution serves no call of this session: {', '.join(called.values())}"
    if why is None and interpreted(solution, device):
        programs = token_programs(family, line, mine)
        if programs > INTERPRETER_LIMIT:
            why = (
                f"interpreted, {programs} token-programs are too many on a CPU (at most {INTERPRETER_LIMIT}): run it "
                "on a GPU"
            )
    return SessionJob(solution, family, line, device, why)


def token_programs(family: Family, line: SessionLine, kinds: list[str]) -> int:
    """Tokens times heads of the calls of these kinds."""
    total, served = 0, serving(family, line)
    for step in line.steps:
        for kind, tokens in line.calls(step):
            if kind in kinds:
                definition = served[kind].definition
                axes = preset_of(family, line).axes
                scope = definition.bind({axis: axes[axis] for axis in definition.const_axes()})
                total += tokens * roles.heads(definition, scope)
    return total


def budget(line: SessionLine, pair: Pair) -> dict[str, float]:
    """The limits of one judged tensor. Raises `SpecError` if the session has none."""
    limits = ((line.budget or {}).get(pair.found.definition.name) or {}).get(pair.tensor.name)
    if limits is None:
        where = f"{pair.tensor.name} of {pair.found.definition.name}"
        advice = "gdnspec workloads freeze --sessions --workloads FILE writes one"
        raise SpecError(f"session {line.name!r} has no error budget for {where}, so it cannot be judged ({advice})")
    return {str(metric): limit for metric, limit in limits.items()}


@dataclass
class Judgement:
    """The verdict on a session, and the largest errors of each judged tensor."""

    verdict: Verdict = field(default_factory=lambda: Verdict("PASSED", ""))
    outputs: dict[str, OutputErrors] = field(default_factory=dict)

    def add(self, line: SessionLine, pair: Pair) -> bool:
        """Judges one pair. False if it fails."""
        limits = budget(line, pair)
        if pair.fault is not None:
            self.verdict = replace(pair.fault, message=f"{pair.place}: {pair.fault.message}")
            return False
        definition = pair.found.definition
        verdict = judge(pair.got, pair.expected, pair.tensor, definition, pair.scope, limits)
        if verdict.errors is not None:
            name = f"{definition.name}.{pair.tensor.name}"
            found = verdict.errors.model_copy(update={"output": name})
            if name not in self.outputs or _share(found) >= _share(self.outputs[name]):
                self.outputs[name] = found
        if verdict.status != "PASSED":
            self.verdict = replace(verdict, message=f"{pair.place}: {verdict.message}")
        return verdict.status == "PASSED"


def _share(found: OutputErrors) -> float:
    shares = (
        float("inf") if (error := found.errors.get(metric)) is None else error / limit
        for metric, limit in found.budget.items()
    )
    return max(shares, default=0.0)


def judged(case: Case, run: Run) -> Judgement:
    """The verdict on one session, whose calls `run` makes, up to the first failure. Raises what `run` raises."""
    found = Judgement()
    for pair in follow(case, run):
        if not found.add(case.line, pair):
            break
    return found


class SessionChecker:
    """Judges jobs. It caches cases, because every solution runs the same ones."""

    def __init__(self, options: Options, warn: Callable[[str], None]) -> None:
        self.options, self._warn = options, warn
        self._cases: dict[str, Case | str] = {}

    def run(self, jobs: list[SessionJob]) -> Generator[CheckResult, None, None]:
        """Yields one result per job as soon as it is known. Jobs of one solution must be adjacent."""
        for _, group in groupby(jobs, key=lambda job: id(job.solution)):
            batch = list(group)
            solution, device = batch[0].solution, batch[0].device
            alone = interpreted(solution, device)
            with Child(solution, device.kind, alone, self.options.confinement, self.options.echo) as child:
                deaths = 0
                for job in batch:
                    before = child.deaths
                    yield self._result(job, child, deaths)
                    deaths = deaths + 1 if child.deaths > before else 0

    def case(self, job: SessionJob) -> Case:
        """The tokens and the truth. Raises `InvalidWorkload`."""
        key = f"{job.family.name} {job.line.model_dump_json()}"
        if key not in self._cases:
            try:
                self._cases[key] = Case.of(job.family, job.line)
            except InvalidWorkload as error:
                self._cases[key] = str(error)
        known = self._cases[key]
        if isinstance(known, str):
            raise InvalidWorkload(known)
        return known

    def _result(self, job: SessionJob, child: Child, deaths: int) -> CheckResult:
        calls = _Calls(job, child, self.options.timeout)
        judgement = Judgement()
        if job.unsupported is not None:
            judgement.verdict = Verdict("UNSUPPORTED", job.unsupported)
        elif deaths >= DEATHS_IN_A_ROW:
            last = child.last_failure
            message = f"not run: its process died {deaths} times in a row; the last message was: {last.message}"
            judgement.verdict = Verdict(last.status, message)
        else:
            judgement = self._judged(job, calls)
        return self._record(job, judgement, child, calls)

    def _judged(self, job: SessionJob, calls: "_Calls") -> Judgement:
        def ended(status: Status, message: str) -> Judgement:
            return Judgement(Verdict(status, message))

        try:
            with one_thread():
                return judged(self.case(job), calls)
        except InvalidWorkload as error:
            return ended("INVALID_WORKLOAD", str(error))
        except NotServed as error:
            return ended("UNSUPPORTED", str(error))
        except CallFault as error:
            return ended(error.verdict.status, f"{calls.place}: {error.verdict.message}")
        except ChildFailed as failure:
            return ended(failure.status, f"{calls.place}: {failure.message}")
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return ended("UNSUPPORTED", full("judge", error))

    def _record(self, job: SessionJob, judgement: Judgement, child: Child, calls: "_Calls") -> CheckResult:
        name = job.solution.name
        command = ["gdnspec", "check", "--sessions", *self.options.given.get(name, ["--solution", name])]
        command += ["--workload", job.line.name, "--device", job.device.kind, *self.options.extra_flags]
        return CheckResult(
            definition=job.table,
            workload=job.line.name,
            suite=job.line.suite,
            solution=name,
            device=job.device.slug,
            status=judgement.verdict.status,
            message=judgement.verdict.message,
            outputs=list(judgement.outputs.values()),
            seconds=calls.seconds,
            isolation=child.isolation,
            repeat=shlex.join(command),
            key=job.key(),
            environment={**environment(job.device), BY_THE_JUDGE: sorted(calls.by_the_judge)},
        )


class _Calls:
    """Makes the calls of a session: with the solution where it serves them, else with the judge's reference."""

    def __init__(self, job: SessionJob, child: Child, timeout: float) -> None:
        self.job, self.child, self.timeout = job, child, timeout
        self.by_the_judge: set[str] = set()
        self.seconds = 0.0
        self.place = ""  # the last call, in words

    def __call__(self, kind: str, found: Found, workload: Workload, content: Content) -> dict[str, Tensor]:
        solution, device = self.job.solution, self.job.device
        definition = found.definition
        entry = solution.manifest.entries.get(definition.name)
        self.place = f"the call of {definition.name}"
        if entry is None:
            self.by_the_judge.add(definition.name)
            return reference(kind, found, workload, content)
        why = unmet(entry, definition, content.scope, device.kind, contiguous=True)
        if why is not None:
            raise NotServed(f"{definition.name}: {why}")
        self.child.load(entry.model_dump())
        there = replace(content, tensors={name: x.to(device.kind) for name, x in content.tensors.items()})
        call = Job(solution, found, workload, device)
        with Session(call, there, device.kind, self.child, self.timeout) as session:
            answer = session.call()
        if answer.fault is not None:
            raise CallFault(answer.fault)
        self.seconds += answer.seconds or 0.0
        return {name: x.cpu() for name, x in answer.outputs.items()}
