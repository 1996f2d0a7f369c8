"""Repeats a call with the same content in the same memory: finds kernels that are only sometimes correct.

It repeats plainly, while other kernels run, and in two sets of buffers at once, each on its own stream. A CPU has
neither streams nor other kernels: there, only the order of the calls differs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from gdnspec.build.full_memory import out_of_memory
from gdnspec.check.call import Answer, Content, Session, description
from gdnspec.check.plan import Job
from gdnspec.check.second import Judge, promised
from gdnspec.check.symmetry import Transformation, apply_all, same_values, undo_all
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.wire.arena import Arena

BY_DEFAULT = {"cpu": 0, "cuda": 20}  # repeats without --repeat
SECONDS = 1.0  # limit for repeats without --repeat; there is at least one of each kind
ROOM = 4  # a second set of buffers needs this many times its bytes of free memory
CROWDED = 3  # calls beside other kernels, and the same number on two streams

Outputs = dict[str, Tensor]


class Second(Session):
    """A second set of buffers in the same child, beside an open session."""

    _opened = False

    def fits(self) -> bool:
        """Whether there is enough memory for it and for two calls at once: running out of it here is not wrong."""
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
    """Repeats of a correct call: `count` of them, or by default as many as the time allows."""

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
        """The verdict on the first wrong call; None if all are correct. `changes` are exact symmetries that give the
        second set of buffers its content. Raises `ChildFailed`."""
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
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
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
        """The verdict on an answer that must equal the first one; None if it does."""
        if answer.fault is not None:
            return Verdict(answer.fault.status, f"{where}: {answer.fault.message}")
        outputs = undo_all(changes or [], answer.outputs)
        differing = [name for name, x in outputs.items() if not bool(same_values(x, self.first[name]).all())]
        if not differing:
            return None
        failed = next((verdict for verdict in self.judge(outputs) if verdict.status != "PASSED"), None)
        if failed is not None:
            return Verdict(failed.status, f"{where}, which was correct before: {failed.message}", failed.errors)
        if not self.job.solution.manifest.deterministic:
            return None
        return Verdict(
            "NOT_REPRODUCIBLE",
            f"{where}: {differing[0]} is within its budget but differs from the first call; "
            f"{promised(self.job.solution)}",
        )
