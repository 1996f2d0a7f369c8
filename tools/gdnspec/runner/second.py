"""The second call: the same memory, the same `prepared`, and content that no earlier answer fits.

All exact symmetries of the definition are drawn at once, so that the right answer is known from the first call, to the
last bit. What keeps answers (by pointer, by hash, by magnitude) or works only once gives the wrong ones here.
"""

from collections.abc import Callable

from torch import Tensor

from gdnspec.compare.judge import Verdict
from gdnspec.runner.call import Session, same_bits
from gdnspec.runner.plan import Job
from gdnspec.runner.symmetry import Transformation, apply_all, same_values, undo_all

Judge = Callable[[dict[str, Tensor]], list[Verdict]]


class SecondCall:
    """What is asked of a job that has answered well once."""

    def __init__(self, job: Job, transformations: list[Transformation]) -> None:
        self.job, self.transformations = job, transformations

    @property
    def what(self) -> str:
        names = ", ".join(t.symmetry.name for t in self.transformations)
        return f"on a second call with other content in the same memory ({names or 'none'})"

    def judge(self, session: Session, first: dict[str, Tensor], judge: Judge) -> Verdict | None:
        """The verdict, or None where the answer is what it must be. Raises `ChildFailed`."""
        answer = session.call(apply_all(self.transformations, session.content.tensors))
        if answer.fault is not None:
            return Verdict(answer.fault.status, f"{self.what}: {answer.fault.message}")
        outputs = undo_all(self.transformations, answer.outputs)
        differing = [name for name, value in outputs.items() if not bool(same_values(value, first[name]).all())]
        if not differing:
            return None
        failed = next((verdict for verdict in judge(outputs) if verdict.status != "PASSED"), None)
        if failed is not None:
            return Verdict(failed.status, f"{self.what}: {failed.message}", failed.errors)
        if not self.job.solution.manifest.deterministic:
            return None  # within its budget, which is all that it promises
        return self._not_held(session, first, outputs, differing[0])

    def _not_held(self, session: Session, first: dict[str, Tensor], outputs: dict[str, Tensor], name: str) -> Verdict:
        """Right within the budget, but not the same bits: is it the content, or the call?"""
        again = session.call()
        if again.fault is None and all(same_bits(again.outputs[other], first[other]) for other in first):
            where = _first(~same_values(outputs[name], first[name]))
            message = f"{name}: {where}; the symmetries are exact, and repeating the first call gives the same bits"
            return Verdict("NOT_REPRODUCIBLE", f"{self.what}: {message}")
        where = _first(again.outputs[name] != first[name])
        message = f"{name}: between two calls on the same inputs, {where}"
        return Verdict("NOT_REPRODUCIBLE", f'{message}; the manifest says "deterministic": true')


def _first(differs: Tensor) -> str:
    places = differs.nonzero()
    at = f", first at {places[0].tolist()}" if len(places) else ""
    return f"{len(places)} elements differ{at}"
