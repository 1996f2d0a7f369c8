"""The second call: the same memory, the same `prepared`, and content for which no earlier answer is correct.

It applies all exact symmetries of the definition at once, so the correct answer follows from the first call, to the
last bit. A solution that keeps answers (by pointer, hash or magnitude) or works only once fails here. If a definition
has symmetries that change the order of sums, a third call applies those as well, and is judged by the budget: only they
move what is between an activation and a sum, such as the states of a whole layer.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gdnspec.catalog.functions import Functions
from gdnspec.catalog.solutions import Solution
from gdnspec.check.call import Session, same_bits
from gdnspec.check.excerpt import strayed
from gdnspec.check.plan import Job
from gdnspec.check.symmetry import Transformation, apply_all, draw, same_values, taken_back
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.torch_arrays import in_blocks

Judge = Callable[[dict[str, Tensor]], list[Verdict]]


def further(
    definition: Definition, scope: Scope, generator: torch.Generator, vanishing: bool = False
) -> list[list[Transformation]]:
    """The symmetries that each later call applies: one call, or two if some symmetries are not exact. Together they
    change everything that a call leaves behind; otherwise a solution could keep the unchanged part from the first
    call."""
    drawn = draw(definition, scope, generator, moved=True)
    exact = [one for one in drawn if holds_exactly(one, vanishing)]
    return [exact] if len(exact) == len(drawn) else [exact, drawn]


def holds_exactly(one: Transformation, vanishing: bool) -> bool:
    """Whether it holds to the last bit. `vanishing`: states are so small that scaling may lose them."""
    scaled = one.symmetry.transform.startswith("scale_")
    return one.symmetry.exact and not (scaled and vanishing)


def promised(solution: Solution) -> str:
    """Who asks for the same bits, and what to do. The likely cause is the promise: few kernels keep it, and PyTorch on
    a CPU does not."""
    if isinstance(solution, Functions):  # it has no manifest that a person could edit
        return "deterministic=True asks for the same bits in every call: leave it out, or fix the kernel"
    cause = 'the manifest promises the same bits in every call ("deterministic": true)'
    return f'{cause}: write "deterministic": false in solution.json, or fix the kernel'


def by_place(solution: Solution) -> str:
    return f"the bits depend on a value's place, and {promised(solution)}"


class SecondCall:
    """A call with other content, after a correct first one."""

    def __init__(self, job: Job, transformations: list[Transformation]) -> None:
        self.job, self.transformations = job, transformations

    @property
    def what(self) -> str:
        names = ", ".join(t.symmetry.name for t in self.transformations)
        which = "second" if self._exact else "third"
        return f"on a {which} call with other content in the same memory ({names or 'none'})"

    @property
    def _exact(self) -> bool:
        return all(holds_exactly(one, self.job.vanishing) for one in self.transformations)

    def judge(self, session: Session, first: dict[str, Tensor], judge: Judge) -> Verdict | None:
        """The verdict, or None if the answer is correct. Raises `ChildFailed`."""
        answer = session.call(session.with_tensors(apply_all(self.transformations, session.content.tensors)))
        if answer.fault is not None:
            return Verdict(answer.fault.status, f"{self.what}: {answer.fault.message}")
        outputs = taken_back(self.transformations, answer.outputs)
        differing = [name for name, value in outputs.items() if not _agree(value, first[name])]
        if not differing:
            return None
        failed = next((verdict for verdict in judge(outputs) if verdict.status != "PASSED"), None)
        if failed is not None:
            return Verdict(failed.status, f"{self.what}: {failed.message}", failed.errors)
        if self.job.workload.judged is not None:
            wrong = strayed(self.job.found.definition, {name: outputs[name] for name in differing}, first)
            if wrong is not None:
                return Verdict(wrong.status, f"{self.what}: {wrong.message}")
        if not (self._exact and self.job.solution.manifest.deterministic):
            return None  # within its budget, and the solution promises no more
        return self._not_held(session, first, outputs, differing[0])

    def _not_held(self, session: Session, first: dict[str, Tensor], outputs: dict[str, Tensor], name: str) -> Verdict:
        """The answer is within the budget but has other bits: finds out whether the content or the call causes it."""
        again = session.call()
        if again.fault is None and all(same_bits(again.outputs[other], first[other]) for other in first):
            where = _first(~same_values(outputs[name], first[name]))
            message = f"{name}: {where}; the symmetries are exact, and a repeat of the first call gives the same bits"
            return Verdict(
                "NOT_REPRODUCIBLE",
                f"{self.what}: {message}; {by_place(self.job.solution)}",
            )
        where = _first(again.outputs[name] != first[name])
        message = f"{name}: between two calls on the same inputs, {where}"
        return Verdict("NOT_REPRODUCIBLE", f"{message}; {promised(self.job.solution)}")


def _agree(a: Tensor, b: Tensor) -> bool:
    return all(bool(same_values(x, y).all()) for x, y in in_blocks(a, b))


def _first(differs: Tensor) -> str:
    places = differs.nonzero()
    at = f", first at {places[0].tolist()}" if len(places) else ""
    return f"{len(places)} elements differ{at}"
