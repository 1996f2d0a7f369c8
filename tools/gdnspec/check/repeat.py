"""More calls with the same content on the same memory: what is right only now and then.

Beside plain repeats there are calls with other kernels running, and calls on two sets of buffers at once, each on a
stream of its own. A CPU has neither: there the order of the calls is all that differs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from gdnspec.check.call import Answer, Content, Session, description
from gdnspec.check.plan import Job
from gdnspec.check.second import PROMISED, Judge
from gdnspec.check.symmetry import Transformation, apply_all, same_values, undo_all
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.wire.arena import Arena

BY_DEFAULT = {"cpu": 0, "cuda": 20}  # repeats where nobody says how many
SECONDS = 1.0  # that repeats may take where nobody says how many; of each kind there is one at least
ROOM = 4  # times the bytes of a set of buffers that must be free before there is a second one
CROWDED = 3  # calls beside other kernels, and as many on two streams

Outputs = dict[str, Tensor]


class Second(Session):
    """A second set of buffers in the same child, beside a session that is open."""

    _opened = False

    def fits(self) -> bool:
        """Whether there is memory for it and for what two calls at once may need: a solution that runs out of it there
        is not wrong."""
        if self.device != "cuda":
            return True
        free, _ = torch.cuda.mem_get_info()
        return free > ROOM * self._nbytes

    @property
    def is_open(self) -> bool:
        return self._opened and self.child.is_open

    def _open(self, arena: Arena) -> None:
        message = description(self.definition, self.entry, self.content, self._slots)
        self.child.open_second(message, arena, self.timeout)
        self._opened = True

    def _let_go(self) -> None:
        if self.is_open:
            self._opened = False
            self.child.close_second(self.timeout)


class Repeats:
    """What is asked of a job that has answered well: `count` repeats, or as many as there is time for by default."""

    def __init__(
        self, job: Job, content: Content, session: Session, first: Outputs, judge: Judge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.job, self.content, self.session, self.first, self.judge = job, content, session, first, judge
        self.clock = clock
        asked = job.extras.repeats
        self.count = BY_DEFAULT[job.device.kind] if asked is None else asked
        self.limit = SECONDS if asked is None else None

    def verdict(self, changes: list[Transformation]) -> Verdict | None:
        """What is wrong with the first call that is; None where all are right. `changes` are exact, and give the second
        set of buffers its content. Raises `ChildFailed`."""
        if not self.count:
            return None
        return next((wrong for wrong in self._all(changes) if wrong is not None), None)

    def _all(self, changes: list[Transformation]) -> Iterator[Verdict | None]:
        started, done = self.clock(), 0
        while done < self.count and (not done or self.limit is None or self.clock() - started < self.limit):
            done += 1
            yield self._same(self.session.call(), f"in repeat {done} of {self.count}")
        for i in range(min(CROWDED, self.count)):
            yield self._same(self._beside_others(), f"in call {i + 1} beside other kernels")
        yield from self._on_two_streams(changes)

    def _beside_others(self) -> Answer:
        session = self.session
        views = session.ready(session.content)
        return session.answer(session.content, views, session.child.call(session.timeout, filler=True))

    def _on_two_streams(self, changes: list[Transformation]) -> Iterator[Verdict | None]:
        first = self.session
        second = Second(self.job, self.content, first.device, first.child, first.timeout)
        if not second.fits():
            return
        with ExitStack() as stack:
            try:
                stack.enter_context(second)
            except (MemoryError, torch.OutOfMemoryError):
                return
            other = second.with_tensors(apply_all(changes, second.content.tensors))
            for i in range(min(CROWDED, self.count)):
                mine, theirs = first.ready(first.content), second.ready(other)
                said = first.child.call_both(first.timeout).get("returned")
                both = said if isinstance(said, list) and len(said) == 2 else [None, None]
                where = f"in call {i + 1} on two streams at once"
                yield self._same(first.answer(first.content, mine, {"returned": both[0]}), where)
                answer = second.answer(other, theirs, {"returned": both[1]})
                yield self._same(answer, f"{where}, with the second set of buffers", changes)

    def _same(self, answer: Answer, where: str, changes: list[Transformation] | None = None) -> Verdict | None:
        """What is wrong with an answer that must be the first one."""
        if answer.fault is not None:
            return Verdict(answer.fault.status, f"{where}: {answer.fault.message}")
        outputs = undo_all(changes or [], answer.outputs)
        differing = [name for name, x in outputs.items() if not bool(same_values(x, self.first[name]).all())]
        if not differing:
            return None
        failed = next((verdict for verdict in self.judge(outputs) if verdict.status != "PASSED"), None)
        if failed is not None:
            return Verdict(failed.status, f"{where}, which was right before: {failed.message}", failed.errors)
        if not self.job.solution.manifest.deterministic:
            return None
        return Verdict(
            "NOT_REPRODUCIBLE",
            f"{where}: {differing[0]} is not what the first call gave, within its budget; {PROMISED}: declare false, "
            "or mend it",
        )
