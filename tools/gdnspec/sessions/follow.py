"""Drives kernels through a session, and pairs what every step leaves behind with its truth."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.catalog.definitions import Found
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import changed_rows
from gdnspec.sessions.case import WINDOWS, Case
from gdnspec.sessions.kernels import Kernels, Made, Run
from gdnspec.sessions.pool_scheduler import PoolScheduler
from gdnspec.sessions.scheduler import Scheduler
from gdnspec.sessions.truth import Expected

Maker = Callable[..., Scheduler]


@dataclass(frozen=True, eq=False)
class Pair:
    """One judged tensor of one step: what is there, and what should be. `fault`: a problem that needs no comparison."""

    number: int
    do: str
    found: Found
    tensor: TensorModel
    got: Tensor
    expected: Tensor
    scope: Scope
    fault: Verdict | None = None

    @property
    def place(self) -> str:
        return f"step {self.number} ({self.do})"


def follow(case: Case, run: Run, scheduler: Maker | None = None) -> Iterator[Pair]:
    """All pairs of a session, step by step. `scheduler`: another than the judge's own."""
    pools = case.pools()
    kernels = Kernels(case.line, case.preset, case.words, case.served, case.tokens.weights, run)
    maker = scheduler or (PoolScheduler if case.line.pooled else Scheduler)
    serving = maker(case.line, case.tokens, kernels, pools)
    for number, (step, expected) in enumerate(zip(case.line.steps, case.expected, strict=True)):
        before = pools.copy()
        serving.serve(step)
        yield from _outputs(case, number, step.do, kernels.take_made(), expected)
        yield from _pool(case, number, step.do, "decode", before.states, pools.states, expected.states)
        if pools.pasts is not None and before.pasts is not None:
            yield from _pool(case, number, step.do, case.convolved, before.pasts, pools.pasts, expected.pasts)
        for kind, old, new, wanted in (
            (case.buffered, before.steps, pools.steps, expected.steps),
            (WINDOWS, before.windows, pools.windows, expected.windows),
        ):
            if kind is not None and old is not None and new is not None:
                old, new = (x.flatten(0, 1).unsqueeze(1) for x in (old, new))  # each place for itself
                yield from _pool(case, number, step.do, kind, old, new, wanted, "steps")


def _outputs(case: Case, number: int, do: str, made: list[Made], expected: Expected) -> Iterator[Pair]:
    """The outputs of a step's calls."""
    for call in made:
        if call.kind in expected.outputs:
            tensor = next(t for t in call.found.definition.outputs if t.name == case.words.roles[call.kind]["output"])
            want, fault = expected.outputs[call.kind], None
            if call.output.shape != want.shape:
                message = f"the calls give {list(call.output.shape)} outputs, not {list(want.shape)}"
                fault = Verdict("INCORRECT_SHAPE", message)
            yield Pair(number, do, call.found, tensor, call.output, want, call.content.scope, fault)


def _pool(
    case: Case, number: int, do: str, kind: str, before: Tensor, after: Tensor, expected: Mapping[int, Tensor],
    role: str = "pool",
) -> Iterator[Pair]:  # fmt: skip
    """What a step leaves in a pool: the slots that it writes, by numbers; all others, bit for bit. An expected value
    may be narrower than its slot: what is behind it there does not count."""
    found, tensor, slots = case.served[kind], case.pool(kind, role), sorted(expected)
    scope = case.scope_of(kind, slots)
    stray = sorted(set(changed_rows(after, before)) - set(slots))
    if stray:
        message = f"slot {stray[0]} of {tensor.name} changed, and this step must leave it as it is, bit for bit"
        fault = Verdict("MUTATED_INPUT", message)
        yield Pair(number, do, found, tensor, after[:0], after[:0].double(), scope, fault)
    if slots:
        got = after[slots].clone()
        wanted = got.new_zeros(got.shape, dtype=torch.float64)
        for i, slot in enumerate(slots):
            width = expected[slot].shape[-1]
            wanted[i, ..., :width] = expected[slot]
            got[i, ..., width:] = 0
        yield Pair(number, do, found, tensor, got, wanted, scope)
