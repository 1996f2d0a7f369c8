"""Runs jobs and judges them: one child process per solution, one verdict per job."""

import shlex
import zlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from gdnspec.build.full_memory import full, out_of_memory
from gdnspec.build.machine import environment
from gdnspec.catalog.definitions import Found
from gdnspec.check import drawn, other_lengths
from gdnspec.check.call import Answer, Content, Session
from gdnspec.check.excerpt import Sample, unfinished
from gdnspec.check.invariance import Invariance, broken
from gdnspec.check.lookalike import Row, Wrong
from gdnspec.check.other_lengths import Relaid
from gdnspec.check.plan import ONCE, Job, token_programs
from gdnspec.check.relations import Relations
from gdnspec.check.repeat import Repeats
from gdnspec.check.second import Judge, SecondCall, further
from gdnspec.check.symmetry import Transformation
from gdnspec.inputs import memory
from gdnspec.inputs.fresh import lines_like, narrower
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult, Outcome, Status
from gdnspec.model.workload import Workload
from gdnspec.numerics.expected import Expected
from gdnspec.numerics.freeze import measure, with_budget
from gdnspec.numerics.judge import Verdict, judge_all
from gdnspec.numerics.profile import with_profile
from gdnspec.sandbox.parent.confinement import Confinement
from gdnspec.sandbox.parent.process import Child, ChildFailed

REMEMBERED_BYTES = 1 << 30
MOST_MOVED = 64  # workloads with moved bounds to keep, each of at most 2,000 tokens
DEATHS_IN_A_ROW = 3
DRAWS = 8  # attempts to draw the content of a fresh workload
DRAWS_OF_MANY = 2  # attempts if a smaller workload comes next


@dataclass(frozen=True)
class Options:
    """`timeout`: seconds for one call. `seed`: draws the content of the second call. `extra_flags`: added to the repeat
    command. `confinement`: for solutions of unknown authors. `given`: the words of the repeat command that select a
    solution, by its name, if it is not found by name. `echo`: gets what solutions print."""

    timeout: float = 120.0
    seed: int = 0
    extra_flags: tuple[str, ...] = ()
    confinement: Confinement | None = None
    given: Mapping[str, list[str]] = field(default_factory=dict)
    echo: Callable[[bytes], object] | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A workload with its budget, inputs and expected values."""

    workload: Workload
    inputs: Inputs
    expected: dict[str, Tensor]

    def content(self, device: str) -> Content:
        """The content of its calls."""
        return Content.of(self.inputs, device)

    def seen(self, definition: Definition, outputs: dict[str, Tensor]) -> dict[str, Tensor] | Verdict:
        """The outputs to compare with the expected values, or a verdict if they are already wrong."""
        return outputs

    def judge(self, definition: Definition, outputs: dict[str, Tensor]) -> list[Verdict]:
        """A verdict for each judged output, or one on what is already wrong."""
        seen = self.seen(definition, outputs)
        if isinstance(seen, Verdict):
            return [seen]
        return judge_all(seen, self.expected, definition, self.workload, self.inputs.scope)

    @property
    def nbytes(self) -> int:
        mine = sum(array.nbytes for array in self.inputs.tensors.values())
        return mine + sum(value.numel() * 8 for value in self.expected.values())


@dataclass(frozen=True, eq=False)
class SampledCase(Case):
    """A large workload. `inputs` and `expected` belong to the sample, `whole` is the content of its calls."""

    whole: Content
    sample: Sample

    def content(self, device: str) -> Content:
        return self.whole

    def seen(self, definition: Definition, outputs: dict[str, Tensor]) -> dict[str, Tensor] | Verdict:
        return unfinished(definition, outputs) or self.sample.outputs(outputs)


def draw_sampled(found: Found, workload: Workload, values: Expected, device: str) -> SampledCase:
    """A sampled case, with the budget that honest emulators give for the sample. Raises `InvalidWorkload`."""
    if workload.drawn == "device":
        whole = drawn.draw(found, workload, device)
    else:
        whole = Content.of(materialise(found, workload), device)
    sample = Sample(found.definition, workload, whole)
    inputs = sample.inputs()
    expected = values.values(found, inputs, keep=False)
    try:
        budgeted = with_budget(found, workload, measure(found, workload, inputs, expected, device))
    except SpecError as error:
        raise InvalidWorkload(str(error)) from None
    return SampledCase(budgeted, inputs, expected, whole, sample)


def draw_fresh(found: Found, workload: Workload, values: Expected, device: str) -> Case:
    """A fresh case with a budget. If even honest emulators are far off, the content tests nothing, and the next seed is
    tried, then fewer sequences, then another line of the same name. Raises `InvalidWorkload` if none of them works."""
    refused = ""
    for line in lines_like(found, workload, device):
        first = line.seed or 0
        for seed in range(first, first + (DRAWS if narrower(found, line) is None else DRAWS_OF_MANY)):
            drawn_line = line.model_copy(update={"seed": seed})
            inputs = materialise(found, drawn_line)
            expected = values.values(found, inputs, keep=False)
            try:
                measured = measure(found, drawn_line, inputs, expected, device)
                return Case(with_budget(found, drawn_line, measured), inputs, expected)
            except SpecError as error:
                refused = str(error)
    raise InvalidWorkload(refused)


@dataclass(frozen=True, eq=False)
class Judgement:
    """The verdict on a job. The verdicts on outputs and the answer are there if the check got that far."""

    verdict: Verdict
    outputs: list[Verdict] = field(default_factory=list)
    answer: Answer | None = None
    symmetries: dict[str, Verdict | None] = field(default_factory=dict)
    invariance: dict[str, Outcome] = field(default_factory=dict)

    @staticmethod
    def of(status: Status, message: str) -> "Judgement":
        return Judgement(Verdict(status, message))


class Checker:
    """Judges jobs. It caches cases, because every solution runs the same ones. `started`: a child that was started
    before this module was imported, for the first jobs that it can serve."""

    def __init__(
        self, device: str, options: Options, warn: Callable[[str], None], started: Child | None = None
    ) -> None:
        self.device, self.options = device, options
        self._started = started
        self.wrong = Wrong()
        self._expected = Expected(device, warn)
        self._cases: OrderedDict[tuple[str, str], Case | str] = OrderedDict()
        self._bounds_moved: OrderedDict[tuple[str, str], tuple[Inputs, dict[str, Tensor]] | None] = OrderedDict()

    def run(self, jobs: list[Job]) -> Generator[CheckResult, None, None]:
        """Yields one result per job as soon as it is known. Jobs of one solution must be adjacent."""
        for _, group in groupby(jobs, key=lambda job: id(job.solution)):
            batch = list(group)
            with self.child(batch[0]) as child:
                deaths: dict[str, int] = {}  # consecutive ones, by definition
                for job in batch:
                    yield self.result(job, child, deaths)

    def child(self, job: Job) -> Child:
        """The process for the job's solution."""
        started, self._started = self._started, None
        if started is not None:
            if (started.solution, started.device, started.interpret) == (job.solution, self.device, job.interpreted):
                return started
            started.end()
        return Child(job.solution, self.device, job.interpreted, self.options.confinement, self.options.echo)

    def result(self, job: Job, child: Child, deaths: dict[str, int]) -> CheckResult:
        """The result of one job. `deaths` counts consecutive deaths of the child by definition; the caller keeps it."""
        if job.unsupported is not None:
            return self._record(job, Judgement.of("UNSUPPORTED", job.unsupported), child)
        entry, before = job.found.definition.name, child.deaths
        if deaths.get(entry, 0) >= DEATHS_IN_A_ROW:
            last = child.last_failure
            said = last.message.splitlines()[0]  # what it wrote at its end was shown with the death itself
            message = f"not run: its process died {deaths[entry]} times in a row; the last message was: {said}"
            return self._record(job, Judgement.of(last.status, message), child)
        try:
            judgement = self._judged_with_room(job, child)
            deaths[entry] = 0
        except InvalidWorkload as error:
            judgement = Judgement.of("INVALID_WORKLOAD", str(error))
        except ChildFailed as failure:
            deaths[entry] = deaths.get(entry, 0) + 1 if child.deaths > before else 0
            judgement = Judgement.of(failure.status, failure.message)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            judgement = Judgement.of("UNSUPPORTED", full("judge", error))
        return self._record(job, judgement, child)

    def _judged_with_room(self, job: Job, child: Child) -> Judgement:
        """The child itself may hold the missing memory, which must not excuse it: tries again with a new one."""
        try:
            return self._judge(job, self.case(job), child)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
        child.end()
        return self._judge(job, self.case(job), child)

    def _judge(self, job: Job, case: Case, child: Child) -> Judgement:
        """Calls, checks the form and then the numbers, then calls again with other content in the same memory."""
        child.load(job.entry.model_dump())
        content, definition = case.content(self.device), job.found.definition
        scope = content.scope

        judged = partial(case.judge, definition)
        with Session(job, content, self.device, child, self.options.timeout) as session:
            answer = session.call()
            if answer.fault is not None:
                return Judgement(answer.fault, answer=answer)
            verdicts = judged(answer.outputs)
            worst = next((verdict for verdict in verdicts if verdict.status != "PASSED"), verdicts[0])
            if len(verdicts) == len(definition.judged) and worst.status != "PASSED":
                self._keep_wrong(job, case, answer.outputs)
            judgement = Judgement(worst, self._profiled(job, verdicts, answer, case), answer)
            once = job.interpreted and token_programs(definition, scope) > ONCE
            if worst.status != "PASSED" or (once and job.extras.repeats is None):
                return judgement
            generator = self._generator(job)
            invariance = Invariance(job, content, child, self.options.timeout, judged, generator, answer.outputs)
            if job.extras.invariance:
                wrong = invariance.of_the_same_batch(session)
            else:
                calls = [] if once else further(definition, scope, generator, job.vanishing)
                later = self._later(job, case, content, session, answer.outputs, judged, calls)
                wrong = next((verdict for verdict in later if verdict is not None), None)
            claims = job.solution.manifest.batch_invariant and case.workload.judged is None
            if wrong is not None or once or not (job.extras.symmetries or job.extras.invariance or claims):
                return replace(judgement, verdict=wrong or worst, invariance=invariance.outcomes)
            relations = Relations(job, content, child, self.options.timeout, judged, generator)
            found: dict[str, Verdict | None] = {}
            if job.extras.symmetries:
                found = {symmetry.name: None for symmetry in definition.symmetries}  # until it is tried
                found |= relations.by_itself(session, answer.outputs, calls[-1])
        if job.extras.symmetries:
            found |= relations.between_calls(answer.outputs)
        if job.extras.invariance or claims:
            wrong = invariance.of_other_batches(pieces=job.extras.invariance)
            wrong = wrong or broken(invariance.outcomes, job.solution.manifest.batch_invariant)
        failed = [verdict for verdict in (*found.values(), wrong) if verdict is not None and verdict.status != "PASSED"]
        verdict = failed[0] if failed else worst
        return replace(judgement, verdict=verdict, symmetries=found, invariance=invariance.outcomes)

    def _keep_wrong(self, job: Job, case: Case, outputs: dict[str, Tensor]) -> None:
        seen = case.seen(job.found.definition, outputs)
        if not isinstance(seen, Verdict):
            self.wrong.add(job.solution.name, Row(job.found, case.workload, case.inputs, seen, case.expected))

    def _later(
        self, job: Job, case: Case, content: Content, session: Session, first: dict[str, Tensor], judge: Judge,
        calls: list[list[Transformation]],
    ) -> Iterator[Verdict | None]:  # fmt: skip
        """The verdicts on calls after a correct first one: with other content, with the same content, and with other
        lengths of sequences. Raises `ChildFailed`."""
        for changes in calls:
            yield SecondCall(job, changes).judge(session, first, judge)
        if case.workload.judged is not None:
            return  # the following checks would need gigabytes twice
        if calls or job.extras.repeats is not None:
            yield Repeats(job, content, session, first, judge).verdict(calls[0] if calls else [])
        relaid = other_lengths.permuted(session.definition, content, first, judge, self._generator(job))
        relaid = relaid or self._moved(job, case)
        if relaid is not None:
            yield other_lengths.judged_anew(session, relaid)

    def _moved(self, job: Job, case: Case) -> Relaid | None:
        """For sequences of one length: the same tokens with other bounds. All solutions share the answer."""
        key = (job.found.definition.name, job.workload.model_dump_json())
        if key not in self._bounds_moved:
            definition = job.found.definition
            inputs = other_lengths.moved(definition, case.inputs, self._generator(job))
            if inputs is not None:
                try:
                    expected = self._expected.values(job.found, inputs, keep=False)
                except InvalidWorkload:
                    inputs = None  # this cut gives values that are not finite, and tests nothing
            self._bounds_moved[key] = None if inputs is None else (inputs, expected)
            while len(self._bounds_moved) > MOST_MOVED:
                self._bounds_moved.popitem(last=False)
        known = self._bounds_moved[key]
        if known is None:
            return None
        inputs, expected = known

        def judge(outputs: dict[str, Tensor]) -> list[Verdict]:
            return judge_all(
                outputs, expected, job.found.definition, other_lengths.widened(case.workload), inputs.scope
            )

        return Relaid(Content.of(inputs, self.device), judge)

    def _generator(self, job: Job) -> torch.Generator:
        return torch.Generator().manual_seed(self.options.seed ^ zlib.crc32(job.workload.name.encode()))

    def _profiled(self, job: Job, verdicts: list[Verdict], answer: Answer, case: Case) -> list[Verdict]:
        """The verdicts, with errors by position if --errors asks for them."""
        definition, scope = job.found.definition, case.inputs.scope
        seen = case.seen(definition, answer.outputs) if job.extras.errors else None
        if seen is None or isinstance(seen, Verdict):
            return verdicts
        return [
            replace(verdict, errors=with_profile(verdict.errors, output, seen, case.expected, definition, scope))
            for verdict, output in zip(verdicts, definition.judged, strict=True)
        ]

    def case(self, job: Job) -> Case:
        """Inputs, expected values and budget. Raises `InvalidWorkload`, `MemoryError`."""
        if job.workload.judged is not None:
            return self._made(job)  # gigabytes on the device: drawing again is better than keeping them
        key = (job.found.definition.name, job.workload.model_dump_json())
        known = self._cases.get(key)
        if known is None:
            try:
                known = self._made(job)
            except InvalidWorkload as error:
                known = str(error)
            self._remember(key, known)
        if isinstance(known, str):
            raise InvalidWorkload(known)
        return known

    def _made(self, job: Job) -> Case:
        found, workload = job.found, job.workload
        if workload.drawn == "device" and self.device != "cpu":
            return draw_sampled(found, workload, self._expected, self.device)  # without a copy on the host
        memory.require(found, workload, memory.ON_A_CPU if self.device == "cpu" else memory.DRAWING)
        if workload.judged is not None:
            return draw_sampled(found, workload, self._expected, self.device)
        if workload.suite == "fresh":
            return draw_fresh(found, workload, self._expected, self.device)
        inputs = materialise(found, workload)
        return Case(workload, inputs, self._expected.values(found, inputs))

    def _remember(self, key: tuple[str, str], case: Case | str) -> None:
        self._cases[key] = case
        held = sum(c.nbytes for c in self._cases.values() if isinstance(c, Case))
        while held > REMEMBERED_BYTES and len(self._cases) > 1:
            _, oldest = self._cases.popitem(last=False)
            held -= oldest.nbytes if isinstance(oldest, Case) else 0

    def _record(self, job: Job, judgement: Judgement, child: Child) -> CheckResult:
        answer = judgement.answer
        definition, workload, name = job.found.definition.name, job.workload.name, job.solution.name
        command = ["gdnspec", "check", definition, *self.options.given.get(name, ["--solution", name])]
        command += ["--workload", workload, "--device", self.device, "--seed", str(self.options.seed)]
        command += [] if job.extras.repeats is None else ["--repeat", str(job.extras.repeats)]
        command += ["--invariance"] if job.extras.invariance else []
        return CheckResult(
            definition=definition,
            definition_version=job.found.definition.version,
            workload=workload,
            suite=job.workload.suite,
            solution=name,
            device=job.device.slug,
            status=judgement.verdict.status,
            message=judgement.verdict.message,
            outputs=[verdict.errors for verdict in judgement.outputs if verdict.errors is not None],
            seconds=(answer.seconds if answer else None) or 0.0,
            prepare_seconds=answer.prepare_seconds if answer else None,
            isolation=child.isolation,
            repeat=shlex.join([*command, *self.options.extra_flags]),
            seed=self.options.seed,
            symmetries={name: v.status if v else None for name, v in judgement.symmetries.items()},
            invariance=judgement.invariance,
            key=job.key(),
            environment=dict(environment(job.device)),
        )
