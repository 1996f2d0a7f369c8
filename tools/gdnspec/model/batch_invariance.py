"""What `gdnspec check --invariance` finds on all workloads of a definition, from the results on each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdnspec.model.result import LIKENESSES, PIECES, QUESTIONS, CheckResult, Likeness, Outcome

WORDS: dict[Likeness, str] = {"same_bits": "same bits", "within_budget": "within budget", "differs": "differs"}
BADGE = "batch-invariant"
PIECE = 64  # pieces of a prefill end at multiples of so many tokens


@dataclass(frozen=True)
class Answer:
    """The worst answer to one question, and the workload of the first difference. `workloads`: on how many it was
    asked. `likeness` None: nowhere, and `message` says why."""

    question: str
    likeness: Likeness | None
    workloads: int
    compared: int
    message: str

    @property
    def words(self) -> str:
        """`same bits`, `within budget`, `differs (first at ...)`, or `not asked`."""
        return "not asked" if self.likeness is None else WORDS[self.likeness]


def answers(results: Iterable[CheckResult]) -> list[Answer]:
    """One answer per question, over the results of one solution on one definition."""
    asked = [result for result in results if result.invariance]
    found = []
    for question in QUESTIONS:
        outcomes = [(r.workload, r.invariance[question]) for r in asked if question in r.invariance]
        if outcomes:
            found.append(_answer(question, outcomes))
    return found


def _answer(question: str, outcomes: Sequence[tuple[str, Outcome]]) -> Answer:
    known = [(workload, one) for workload, one in outcomes if one.likeness is not None]
    if not known:
        return Answer(question, None, 0, 0, outcomes[0][1].message)
    workload, worst = max(known, key=lambda item: LIKENESSES.index(item[1].likeness or "same_bits"))
    message = f"{workload}: {worst.message}" if worst.message else ""
    return Answer(question, worst.likeness, len(known), sum(one.compared for _, one in known), message)


def invariant(results: Iterable[CheckResult]) -> bool | None:
    """Whether the solution is batch-invariant on every workload where that was asked; None if it was on none."""
    found = [result.batch_invariant for result in results if result.batch_invariant is not None]
    return all(found) if found else None


def pieces(results: Iterable[CheckResult]) -> Likeness | None:
    """How alike a prefill in one call and in pieces are: the worst over all workloads; None if nobody asked."""
    found = [result.pieces for result in results if result.pieces is not None]
    return max(found, key=LIKENESSES.index) if found else None


def badge(batch_invariant: bool | None, in_pieces: Likeness | None) -> str:
    """`batch-invariant; pieces: same bits`, for tables. Empty if nobody asked."""
    said = "" if batch_invariant is None else BADGE if batch_invariant else f"not {BADGE}"
    beside = "" if in_pieces is None else f"{PIECES}: {WORDS[in_pieces]}"
    return "; ".join(filter(None, (said, beside)))
