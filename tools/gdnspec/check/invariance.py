"""Asks whether the bits of a sequence, or of a row, depend on what else is in its batch.

An engine batches other requests in every step. If an answer depends on them, the same request gives other tokens from
run to run. Each question puts a sequence into another batch, and compares its outputs with those of the first call, bit
for bit. The last question cuts a sequence into pieces, as chunked prefill does.

What differs must still be within the budget: otherwise the call is wrong, not only of other bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from gdnspec.catalog.supports import unmet
from gdnspec.check.batch import Batch, Piece
from gdnspec.check.call import Answer, Content, Session, same_bits
from gdnspec.check.plan import Job
from gdnspec.check.second import Judge
from gdnspec.model import roles
from gdnspec.model.batch_invariance import PIECE
from gdnspec.model.result import AGAIN, GRAPH, LIKENESSES, PIECES, QUESTIONS, Likeness, Outcome
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import integers
from gdnspec.sandbox.parent.process import Child

MANY = 4  # sequences that are looked at one by one, at most
MOST_PIECES = 4
PROMISED = 'the manifest promises the same bits in every batch ("batch_invariant": true)'

Outputs = dict[str, Tensor]


class Faulty(Exception):
    """A call whose answer is wrong before any number is compared."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class NotAsked(Exception):
    """A call that the solution or the definition does not have: why."""


@dataclass(frozen=True)
class Answered:
    """How alike the two answers for one sequence are, and where they differ first. None: it could not be asked, and
    `message` says why."""

    likeness: Likeness | None
    message: str = ""


Answers = Iterator[Answered]


@dataclass
class Tally:
    """The answers to one question: the worst of them, and the first one like it."""

    compared: int = 0
    likeness: Likeness | None = None
    message: str = ""
    why_not: str = "the workload has no such batch"

    def add(self, answered: Answered) -> None:
        worst, found = self.likeness, answered.likeness
        if found is None:
            self.why_not = answered.message
            return
        self.compared += 1
        if worst is None or LIKENESSES.index(found) > LIKENESSES.index(worst):
            self.likeness, self.message = found, answered.message

    def outcome(self) -> Outcome:
        said = self.why_not if self.likeness is None else self.message
        return Outcome(likeness=self.likeness, compared=self.compared, message=said)


def broken(outcomes: Mapping[str, Outcome], claimed: bool) -> Verdict | None:
    """Why a solution with these answers fails, or None. `claimed`: its manifest says that it is batch-invariant."""
    for question, found in outcomes.items():
        if found.likeness == "differs":
            return Verdict("INCORRECT_NUMERICAL", f"{QUESTIONS[question]}: {found.message}")
    for question, found in outcomes.items():
        if claimed and found.likeness == "within_budget" and question != PIECES:
            return Verdict("NOT_INVARIANT", f"{QUESTIONS[question]}: {found.message}; {PROMISED}")
    return None


@dataclass(frozen=True, eq=False)
class Invariance:
    """The questions about one correct call on `content`, which left the outputs `first`."""

    job: Job
    content: Content
    child: Child
    timeout: float
    judge: Judge
    generator: torch.Generator
    first: Outputs
    _tallies: dict[str, Tally] = field(default_factory=dict)

    def of_the_same_batch(self, session: Session) -> Verdict | None:
        """Asks what needs no other batch. `session` made the first call. Returns the verdict on a call that is wrong,
        or None. Raises `ChildFailed`."""
        return self._asked({AGAIN: lambda: self._again(session), GRAPH: lambda: self._graph(session)})

    def of_other_batches(self, pieces: bool) -> Verdict | None:
        """Asks the other questions, the last one only with `pieces`, each call in a session of its own: the first one
        must be closed. Returns the verdict on a call that is wrong, or None. Raises `ChildFailed`."""
        return self._asked({
            "alone": self._alone, "first": lambda: self._moved(first=True), "last": lambda: self._moved(first=False),
            "among_others": self._among_others, "other_lengths": self._beside_other_lengths,
            **({PIECES: self._in_pieces} if pieces else {}),
        })  # fmt: skip

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The answer to every question that was asked, or could not be."""
        asked = {question: self._tallies[question] for question in QUESTIONS if question in self._tallies}
        return {question: tally.outcome() for question, tally in asked.items()}

    def _asked(self, questions: Mapping[str, Callable[[], Answers]]) -> Verdict | None:
        for question, answers in questions.items():
            tally = self._tallies[question] = Tally()
            try:
                for answered in answers():
                    tally.add(answered)
            except NotAsked as why:
                tally.why_not = str(why)
            except Faulty as fault:
                return replace(fault.verdict, message=f"{QUESTIONS[question]}: {fault.verdict.message}")
        return None

    # --- the same batch ---------------------------------------------------------------------------------------------

    def _again(self, session: Session) -> Answers:
        outputs = _whole(session.call())
        yield self._compared(outputs, self.first, lambda _: outputs)

    def _graph(self, session: Session) -> Answers:
        if self.job.device.kind != "cuda":
            raise NotAsked("it needs a CUDA GPU")
        answer = session.replayed()
        if isinstance(answer, str):
            raise NotAsked(f"no graph can be captured: {answer}")
        outputs = _whole(answer)
        yield self._compared(outputs, self.first, lambda _: outputs)

    # --- other batches ----------------------------------------------------------------------------------------------

    def _alone(self) -> Answers:
        batch = self._batch()
        for n in self._looked_at(batch):
            yield from self._called(batch, [batch.whole(n)], [0])

    def _moved(self, first: bool) -> Answers:
        batch = self._batch()
        for n in self._looked_at(batch):
            others = [batch.whole(m) for m in range(batch.count) if m != n]
            if n == (0 if first else batch.count - 1):
                continue  # it stands there already
            pieces = [batch.whole(n), *others] if first else [*others, batch.whole(n)]
            yield from self._called(batch, pieces, [0 if first else len(others)])

    def _among_others(self) -> Answers:
        """Some of the batch, as many as each power of two, and all of it; each in another order. Every sequence is
        compared. Then with skipped rows beside them, where a definition has these."""
        batch = self._batch()
        sizes = [1 << i for i in range(1, batch.count.bit_length()) if 1 << i < batch.count]
        for size in [*sizes, batch.count]:
            chosen = self._order(batch.count)[:size]
            if chosen == list(range(batch.count)):
                chosen = chosen[1:] + chosen[:1]
            yield from self._called(batch, [batch.whole(n) for n in chosen], list(range(size)))
        whole = [batch.whole(n) for n in range(batch.count)]
        for n in self._looked_at(batch)[:2]:
            skipping = self._skipping(batch, n)
            if skipping is not None:
                yield from self._called(batch, whole, [n], skipping)

    def _beside_other_lengths(self) -> Answers:
        batch = self._batch()
        if not batch.ragged:
            yield from self._beside_other_counts(batch)
            return
        for i, n in enumerate(self._looked_at(batch)):
            for cut in (self._cut, lambda batch, m: 0) if i == 0 else (self._cut,):
                pieces = [batch.whole(m) for m in range(batch.count)]
                cuts = [Piece(m, 0, piece.stop if m == n else cut(batch, m)) for m, piece in enumerate(pieces)]
                if cuts != pieces:
                    yield from self._called(batch, cuts, [n])

    def _beside_other_counts(self, batch: Batch) -> Answers:
        """Rows of one length have inputs that count entries, such as accepted drafts: the others get other counts."""
        counting = [model.name for model in batch.definition.inputs if model.counts is not None]
        if not counting:
            raise NotAsked("all rows have one length")
        whole = [batch.whole(m) for m in range(batch.count)]
        for n in self._looked_at(batch):
            replaced = {}
            for name in counting:
                x = self.content.tensors[name].clone()
                others = [m for m in range(batch.count) if m != n]
                x[others] = x[others].roll(1, dims=0) if len(others) > 2 else x[others].flip(0)
                replaced[name] = x
            if any(not torch.equal(x, self.content.tensors[name]) for name, x in replaced.items()):
                yield from self._called(batch, whole, [n], replaced)

    def _cut(self, batch: Batch, sequence: int) -> int:
        """A length below the sequence's own at which it may be cut; its own if there is none."""
        where = [cut for cut in batch.cuts(sequence) if cut < batch.whole(sequence).stop]
        return where[self._below(len(where))] if where else batch.whole(sequence).stop

    def _skipping(self, batch: Batch, kept: int) -> dict[str, Tensor] | None:
        """The slots of the batch with all rows but one skipped; None if the definition has no such rows."""
        slots = [model for model in batch.definition.inputs if model.indexes is not None]
        if not slots or any(str((model.shape or [""])[0]) not in batch.per_row for model in slots):
            return None
        replaced = {}
        for model in slots:
            x = torch.full_like(self.content.tensors[model.name], -1)
            x[kept] = self.content.tensors[model.name][kept]
            replaced[model.name] = x
        scope = {**self.content.scope, **self.content.scalars, **integers(replaced)}
        return None if any(batch.definition.broken(scope)) else replaced

    def _called(
        self, batch: Batch, pieces: Sequence[Piece], places: Sequence[int], replaced: Mapping[str, Tensor] | None = None
    ) -> Answers:
        """One call on these pieces. Compares the whole sequences at `places`."""
        content = batch.take(pieces, replaced or {})
        try:
            outputs = self._outputs(content)
        except NotAsked as why:
            yield Answered(None, str(why))
            return
        taken = Batch(batch.definition, content)
        for place in places:
            whole = [batch.whole(pieces[place].sequence)]
            got = taken.get(outputs, [taken.whole(place)])

            def into(outputs: Outputs, whole: list[Piece] = whole, got: Outputs = got) -> Outputs:
                return _put(batch, outputs, got, whole)

            wanted = batch.get(self.first, whole)
            what = f"{'sequence' if batch.ragged else 'row'} {whole[0].sequence} in a batch of {len(pieces)}"
            yield self._compared(got, wanted, into, batch.sums, what)

    # --- one call, or pieces ----------------------------------------------------------------------------------------

    def _in_pieces(self) -> Answers:
        batch = self._batch(least=1)
        if not batch.ragged or self.job.found.definition.stage == "backward":
            raise NotAsked("no sequence can be continued")
        self._tallies[PIECES].why_not = f"no sequence has more than {PIECE} tokens"
        for n in self._looked_at(batch):
            alone = Batch(batch.definition, batch.take([batch.whole(n)]))
            edges = [cut for cut in alone.cuts(0) if cut % PIECE == 0 and 0 < cut < alone.whole(0).stop]
            if not edges:
                continue
            one = self._outputs(alone.content)
            drawn = sorted(edges[i] for i in self._order(len(edges))[: MOST_PIECES - 1])
            for cuts in {(edges[0],), (edges[self._below(len(edges))],), tuple(drawn)}:
                whole = self._continued(alone, one, cuts)

                def into(outputs: Outputs, n: int = n, whole: Outputs = whole) -> Outputs:
                    return _put(batch, outputs, whole, [batch.whole(n)])

                what = f"sequence {n} cut at {', '.join(map(str, cuts))}"
                yield self._compared(whole, one, into, batch.sums, what)

    def _continued(self, alone: Batch, one: Outputs, cuts: Sequence[int]) -> Outputs:
        """The outputs of one sequence in pieces: each starts from what the one before it left."""
        whole = {name: x.clone() for name, x in one.items()}
        carried: dict[str, Tensor] = {}
        for start, stop in pairwise([0, *cuts, alone.whole(0).stop]):
            piece = [Piece(0, start, stop)]
            outputs = self._outputs(alone.take(piece, carried))
            alone.put(whole, outputs, piece)
            carried = alone.carried(piece, whole)
        return whole

    # --- calls and comparisons --------------------------------------------------------------------------------------

    def _batch(self, least: int = 2) -> Batch:
        definition = self.job.found.definition
        batch = Batch(definition, self.content)
        if batch.count < least:
            noun = "sequences" if roles.axis(definition, "sequences") else "rows"
            raise NotAsked(f"the workload has fewer than {least} {noun}" if batch.count else f"it has no {noun}")
        if least > 1 and all(output.name in batch.sums for output in definition.judged):
            raise NotAsked("every output is a sum over the batch")
        return batch

    def _looked_at(self, batch: Batch) -> list[int]:
        """The sequences that are looked at one by one: first, last, longest, shortest that is not empty, and others."""
        lengths = {n: batch.whole(n).stop for n in range(batch.count)}
        told = [n for n, length in lengths.items() if length] or list(lengths)
        chosen = [told[0], told[-1], max(told, key=lengths.__getitem__), min(told, key=lengths.__getitem__)]
        return list(dict.fromkeys([*chosen, *(told[i] for i in self._order(len(told)))]))[:MANY]

    def _outputs(self, content: Content) -> Outputs:
        """One call in a session of its own. Raises `NotAsked`, `Faulty`, `ChildFailed`."""
        job, definition = self.job, self.job.found.definition
        contiguous = job.workload.contiguous(definition)
        outside = unmet(job.entry, definition, content.scope, job.device.kind, contiguous)
        if outside is not None:
            raise NotAsked(outside)
        with Session(job, content, job.device.kind, self.child, self.timeout) as session:
            return _whole(session.call())

    def _compared(
        self,
        got: Outputs,
        wanted: Outputs,
        into: Callable[[Outputs], Outputs],
        sums: Sequence[str] = (),
        what: str = "",
    ) -> Answered:
        """How alike they are, without the outputs `sums`. `into` puts `got` into a copy of the first call's outputs,
        which are then judged as a whole. `what` was compared, in words."""
        unlike = [name for name in wanted if name not in sums and not same_bits(got[name], wanted[name])]
        if not unlike:
            return Answered("same_bits")
        judged = into({name: x.clone() for name, x in self.first.items()})
        failed = next((verdict for verdict in self.judge(judged) if verdict.status != "PASSED"), None)
        said = failed.message if failed else f"{unlike[0]}: {_first(got[unlike[0]], wanted[unlike[0]])}"
        return Answered("differs" if failed else "within_budget", f"{what}, {said}" if what else said)

    def _order(self, count: int) -> list[int]:
        order: list[int] = torch.randperm(count, generator=self.generator).tolist()
        return order

    def _below(self, count: int) -> int:
        return int(torch.randint(0, count, (1,), generator=self.generator))


def _whole(answer: Answer) -> Outputs:
    if answer.fault is not None:
        raise Faulty(answer.fault)
    return answer.outputs


def _put(batch: Batch, outputs: Outputs, part: Outputs, pieces: Sequence[Piece]) -> Outputs:
    """`outputs` with the part of some sequences, and sums over the batch as they are."""
    batch.put(outputs, part | {name: outputs[name] for name in batch.sums}, pieces)
    return outputs


def _first(got: Tensor, wanted: Tensor) -> str:
    """How many elements have other bits, and the index of the first, in the tensor of this sequence alone."""
    as_bytes = [x.contiguous().flatten().view(torch.uint8).view(max(1, x.numel()), -1) for x in (got, wanted)]
    apart = (as_bytes[0] != as_bytes[1]).any(dim=1).nonzero().flatten()
    place = [int(i) for i in torch.unravel_index(apart[0], got.shape)]
    return f"{len(apart)} of {got.numel()} elements differ, first at {place}"
