"""Runs jobs and judges them: one child a solution, one verdict a job."""

import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from gdnspec.build.machine import environment
from gdnspec.compare.budget import budget
from gdnspec.compare.judge import Verdict, judge
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.model.definition import Tensor as TensorModel
from gdnspec.model.result import CheckResult, OutputErrors, Status
from gdnspec.protocol.arena import GUARD_BYTE, Arena, Slot, create, lay_out, zones
from gdnspec.runner.child import Child, ChildFailed
from gdnspec.runner.expected import Expected
from gdnspec.runner.memory import check_memory
from gdnspec.runner.plan import Job
from gdnspec.runner.tensors import to_torch

REMEMBERED_BYTES = 1 << 30
DEATHS_IN_A_ROW = 3


@dataclass(frozen=True)
class Options:
    """`timeout`: seconds for one call. `extra_flags`: what the repeat command needs beside names."""

    timeout: float = 120.0
    extra_flags: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Case:
    """A workload ready to be run: inputs and expected values."""

    inputs: Inputs
    expected: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        drawn = sum(array.nbytes for array in self.inputs.tensors.values())
        return drawn + sum(value.numel() * 8 for value in self.expected.values())


class Checker:
    """Judges jobs; remembers cases, for every solution meets the same ones."""

    def __init__(self, device: str, options: Options, warn: Callable[[str], None]) -> None:
        self.device, self.options = device, options
        self._expected = Expected(device, warn)
        self._cases: OrderedDict[tuple[str, str], Case | str] = OrderedDict()

    def run(self, jobs: list[Job]) -> Iterator[CheckResult]:
        """One result a job, as it comes; jobs of one solution stand together."""
        for _, group in groupby(jobs, key=lambda job: id(job.solution)):
            batch = list(group)
            with Child(batch[0].solution, self.device, batch[0].interpreted) as child:
                deaths: dict[str, int] = {}  # in a row, by definition
                for job in batch:
                    yield self._result(job, child, deaths)

    def _result(self, job: Job, child: Child, deaths: dict[str, int]) -> CheckResult:
        verdicts: list[Verdict] = []
        seconds: dict[str, float | None] = {}
        if job.unsupported is not None:
            return self._record(job, "UNSUPPORTED", job.unsupported, verdicts, seconds, child)
        entry, before = job.found.definition.name, child.deaths
        if deaths.get(entry, 0) >= DEATHS_IN_A_ROW:
            last = child.last_failure
            message = f"not run: its process was lost {deaths[entry]} times in a row, last: {last.message}"
            return self._record(job, last.status, message, verdicts, seconds, child)
        try:
            case = self._case(job)
            verdict = _Call(job, case, child, self.device, self.options, seconds).judged(verdicts)
            deaths[entry] = 0
        except InvalidWorkload as error:
            verdict = Verdict("INVALID_WORKLOAD", str(error))
        except ChildFailed as failure:
            deaths[entry] = deaths.get(entry, 0) + 1 if child.deaths > before else 0
            verdict = Verdict(failure.status, failure.message)
        except (torch.OutOfMemoryError, MemoryError) as error:
            verdict = Verdict("UNSUPPORTED", f"out of memory: {(str(error).splitlines() or ['no more is said'])[0]}")
        return self._record(job, verdict.status, verdict.message, verdicts, seconds, child)

    def _case(self, job: Job) -> Case:
        key = (job.found.definition.name, job.workload.name)
        known = self._cases.get(key)
        if known is None:
            try:
                check_memory(job.found, job.workload, self.device)
                inputs = materialise(job.found, job.workload)
                known = Case(inputs, self._expected.values(job.found, inputs))
            except InvalidWorkload as error:
                known = str(error)
            self._remember(key, known)
        if isinstance(known, str):
            raise InvalidWorkload(known)
        return known

    def _remember(self, key: tuple[str, str], case: Case | str) -> None:
        self._cases[key] = case
        held = sum(c.nbytes for c in self._cases.values() if isinstance(c, Case))
        while held > REMEMBERED_BYTES and len(self._cases) > 1:
            _, oldest = self._cases.popitem(last=False)
            held -= oldest.nbytes if isinstance(oldest, Case) else 0

    def _record(
        self,
        job: Job,
        status: Status,
        message: str,
        verdicts: list[Verdict],
        seconds: dict[str, float | None],
        child: Child,
    ) -> CheckResult:
        errors: list[OutputErrors] = [verdict.errors for verdict in verdicts if verdict.errors is not None]
        definition, workload, name = job.found.definition.name, job.workload.name, job.solution.name
        command = ["gdnspec", "check", definition, "--solution", name, "--workload", workload, "--device", self.device]
        return CheckResult(
            definition=definition,
            workload=workload,
            suite=job.workload.suite,
            solution=name,
            device=job.device.slug,
            status=status,
            message=message,
            outputs=errors,
            seconds=seconds.get("call") or 0.0,
            prepare_seconds=seconds.get("prepare"),
            isolation=child.isolation,
            repeat=shlex.join([*command, *self.options.extra_flags]),
            key=job.key(),
            environment=dict(environment(job.device)),
        )


class _Call:
    """One job on one child."""

    def __init__(
        self, job: Job, case: Case, child: Child, device: str, options: Options, seconds: dict[str, float | None]
    ) -> None:
        self.job, self.case, self.child, self.device, self.options = job, case, child, device, options
        self.seconds = seconds
        definition = job.found.definition
        self.inputs = {name: to_torch(array).to(device) for name, array in case.inputs.tensors.items()}
        self.outputs: list[TensorModel] = list(definition.outputs)
        scope = case.inputs.scope
        tensors = [(n, definition.input(n).dtype, tuple(x.shape)) for n, x in self.inputs.items()]
        tensors += [(t.name, t.dtype, definition.shape(t, scope)) for t in self.outputs]
        slots, self.nbytes = lay_out(tensors)
        self.zones = zones(slots, self.nbytes)
        self.slots: dict[str, Slot] = {slot.name: slot for slot in slots}

    def judged(self, verdicts: list[Verdict]) -> Verdict:
        """Fills `verdicts`, one an output that was compared; returns the first that is not PASSED."""
        entry = self.job.entry.model_dump()
        self.child.load(entry)
        first = self._once(entry)
        if first.status != "PASSED":
            return first
        assert self.snapshot is not None
        snapshot = self.snapshot
        for output in self.outputs:
            limits = budget(self.job.found.definition, output, self.job.workload)
            expected = self.case.expected[output.name]
            scope = self.case.inputs.scope
            verdicts.append(judge(snapshot[output.name], expected, output, self.job.found.definition, scope, limits))
        worst = next((verdict for verdict in verdicts if verdict.status != "PASSED"), None)
        if worst is not None:
            return worst
        # The interpreter is serial: a race cannot show there, and every call costs seconds.
        if self.job.solution.manifest.deterministic and not self.job.interpreted:
            return self._repeated(entry, snapshot)
        return first

    def _repeated(self, entry: dict[str, Any], first: dict[str, Tensor]) -> Verdict:
        again = self._once(entry)
        if again.status != "PASSED":
            return Verdict(again.status, f"on a second call: {again.message}")
        assert self.snapshot is not None
        for name, value in self.snapshot.items():
            if not _same_bits(value, first[name]):
                where = (value != first[name]).nonzero()
                at = f", first at {where[0].tolist()}" if len(where) else ""
                message = f"{name}: {len(where)} elements differ between two calls on the same inputs{at}"
                return Verdict("NOT_REPRODUCIBLE", f'{message}; the manifest says "deterministic": true')
        return again

    snapshot: dict[str, Tensor] | None = None

    def _once(self, entry: dict[str, Any]) -> Verdict:
        arena = create(self.device, self.nbytes)
        try:
            return self._call(entry, arena)
        finally:
            arena.close()

    def _call(self, entry: dict[str, Any], arena: Arena) -> Verdict:
        assert arena.block is not None
        block = arena.block
        for _, zone in self.zones:
            block[zone] = GUARD_BYTE
        views = {name: slot.view(block) for name, slot in self.slots.items()}
        for name, value in self.inputs.items():
            views[name].copy_(value)
        for output in self.outputs:
            _poison(views[output.name])
        if self.device == "cuda":
            torch.cuda.synchronize()
        message = {
            "entry": entry,
            "arena": arena.describe(),
            "slots": {name: slot.to_json() for name, slot in self.slots.items()},
            "inputs": [tensor.name for tensor in self.job.found.definition.inputs],
            "outputs": [output.name for output in self.outputs],
            "scalars": self.case.inputs.scalars,
        }
        fds = [arena.fd] if self.device == "cpu" else []  # type: ignore[union-attr]
        reply = self.child.run(message, fds, self.options.timeout)
        # At once, before anything else: what is written after "done" does not count.
        self.snapshot = {output.name: views[output.name].clone() for output in self.outputs}
        after = {name: views[name].clone() for name in self.inputs}
        overrun = [name for name, zone in self.zones if not bool((block[zone] == GUARD_BYTE).all())]
        self.seconds["call"] = _number(reply.get("seconds"))
        self.seconds["prepare"] = _number(reply.get("prepare_seconds"))
        if overrun:
            return Verdict("RUNTIME_ERROR", f"wrote outside of every tensor, behind {', '.join(overrun)}")
        return self._form(reply, entry) or self._mutated(after) or Verdict("PASSED", "")

    def _form(self, reply: dict[str, Any], entry: dict[str, Any]) -> Verdict | None:
        """Shape and type of what was returned, against the definition."""
        if entry["call"] == "out":
            return None  # the parent made the outputs
        returned = reply.get("returned")
        if not isinstance(returned, list) or len(returned) != len(self.outputs):
            return Verdict("PROTOCOL_ERROR", "the child did not say what was returned")
        if not all(isinstance(got, dict) for got in returned):
            return Verdict("PROTOCOL_ERROR", "the child did not say what was returned")
        for output, got in zip(self.outputs, returned, strict=True):
            wanted = list(self.slots[output.name].shape)
            if got.get("shape") != wanted:
                return Verdict("INCORRECT_SHAPE", f"{output.name} has shape {str(got.get('shape'))[:80]}, not {wanted}")
        for output, got in zip(self.outputs, returned, strict=True):
            if got.get("dtype") != output.dtype:
                return Verdict("INCORRECT_DTYPE", f"{output.name} is {str(got.get('dtype'))[:40]}, not {output.dtype}")
        return None

    def _mutated(self, after: dict[str, Tensor]) -> Verdict | None:
        for name, value in after.items():
            if not self.job.found.definition.input(name).mutates and not _same_bits(value, self.inputs[name]):
                return Verdict("MUTATED_INPUT", f"{name} was written to")
        return None


def _poison(tensor: Tensor) -> None:
    """What an output holds before the call: nothing that a kernel could have meant."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min if tensor.dtype != torch.bool else True)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def _number(value: Any) -> float | None:
    """What a child says of its own time is shown, never trusted."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if known else None
