"""Checks each symmetry separately, and relations between whole calls.

An exact symmetry leaves no tolerance to a solution that promises the same bits. Other symmetries, and relations that
permute sequences, run them one at a time or carry a state between calls, change the order of sums. Their results must
stay within the budget.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gdnspec.catalog.supports import unmet
from gdnspec.check.batch import Batch, Piece
from gdnspec.check.call import Content, Session
from gdnspec.check.plan import Job
from gdnspec.check.second import Judge, SecondCall
from gdnspec.check.symmetry import Transformation
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.parent.process import Child

MANY = 8  # sequences that are run one at a time, at most

Outputs = dict[str, Tensor]


class Skipped(Exception):
    """The solution does not support the call that a relation needs, or the relation does not apply."""


@dataclass(frozen=True, eq=False)
class Relations:
    """The relations that a passed job must satisfy. Both methods yield (name, verdict); None if it does not apply."""

    job: Job
    content: Content
    child: Child
    timeout: float
    judge: Judge
    generator: torch.Generator

    def by_itself(
        self, session: Session, first: Outputs, transformations: list[Transformation]
    ) -> Iterator[tuple[str, Verdict | None]]:
        """Checks each symmetry separately. `session` is the one that produced `first`. Raises `ChildFailed`."""
        for transformation in transformations:
            verdict = SecondCall(self.job, [transformation]).judge(session, first, self.judge)
            yield transformation.symmetry.name, verdict or Verdict("PASSED", "")

    def between_calls(self, first: Outputs) -> Iterator[tuple[str, Verdict | None]]:
        """Checks relations between calls of other shapes, each in its own session. Raises `ChildFailed`."""
        for name, relation in self._relations().items():
            try:
                outputs = relation({name: x.clone() for name, x in first.items()})
            except Skipped:
                yield name, None
                continue
            if isinstance(outputs, Verdict):
                yield name, Verdict(outputs.status, f"{name}: {outputs.message}")
                continue
            failed = next((verdict for verdict in self.judge(outputs) if verdict.status != "PASSED"), None)
            yield name, Verdict(failed.status, f"{name}: {failed.message}") if failed else Verdict("PASSED", "")

    def _relations(self) -> dict[str, Callable[[Outputs], Outputs | Verdict]]:
        alone: dict[str, Callable[[Outputs], Outputs | Verdict]] = {"one_sequence_at_a_time": self._one_at_a_time}
        if self.job.found.definition.conventions.packing == "ragged":
            return {"permute_sequences": self._permuted, **alone, "split_and_carry": self._split}
        return alone  # rows of one token are permuted exactly, by a symmetry

    def _permuted(self, whole: Outputs) -> Outputs | Verdict:
        batch = self._batch()
        order = torch.randperm(batch.count, generator=self.generator).tolist()
        if batch.count < 2:
            raise Skipped
        return self._placed(batch, whole, [batch.whole(n) for n in order])

    def _one_at_a_time(self, whole: Outputs) -> Outputs | Verdict:
        batch = self._batch()
        if batch.count < 2 or batch.sums:
            raise Skipped
        for n in torch.randperm(batch.count, generator=self.generator).tolist()[:MANY]:
            found = self._placed(batch, whole, [batch.whole(n)])
            if isinstance(found, Verdict):
                return found
        return whole

    def _split(self, whole: Outputs) -> Outputs | Verdict:
        """Cuts every sequence in two at random. The second call starts from the final states of the first. Gradients
        are carried the other way, from states that no call returns."""
        batch = self._batch()
        if self.job.found.definition.stage == "backward":
            raise Skipped
        pieces = [batch.whole(n) for n in range(batch.count)]
        if not any(piece.stop > 1 for piece in pieces):
            raise Skipped
        places = [batch.cuts(piece.sequence) for piece in pieces]
        cuts = [where[int(torch.randint(0, len(where), (1,), generator=self.generator))] for where in places]
        before = [Piece(piece.sequence, 0, cut) for piece, cut in zip(pieces, cuts, strict=True)]
        after = [Piece(piece.sequence, cut, piece.stop) for piece, cut in zip(pieces, cuts, strict=True)]
        found = self._placed(batch, whole, before)
        if isinstance(found, Verdict):
            return found
        return self._placed(batch, whole, after, batch.carried(before, whole))

    def _batch(self) -> Batch:
        return Batch(self.job.found.definition, self.content)

    def _placed(
        self, batch: Batch, whole: Outputs, pieces: list[Piece], replaced: Mapping[str, Tensor] = MappingProxyType({})
    ) -> Outputs | Verdict:
        """Calls on pieces and copies the outputs into `whole`; a verdict if their form is already wrong."""
        content = batch.take(pieces, replaced)
        job, definition = self.job, self.job.found.definition
        contiguous = job.workload.contiguous(definition)
        if unmet(job.entry, definition, content.scope, job.device.kind, contiguous) is not None:
            raise Skipped
        with Session(self.job, content, self.job.device.kind, self.child, self.timeout) as session:
            answer = session.call()
        if answer.fault is not None:
            return answer.fault
        batch.put(whole, answer.outputs, pieces)
        return whole
