"""The result of a check: one line per (solution, definition, workload), as `gdnspec check --json` writes it."""

from typing import Any, Literal

from pydantic import Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Version

UNWRITTEN = "every value is NaN: was it never written?"  # the message of an output that is as the worker made it

Status = Literal[
    "PASSED",
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "NON_FINITE",
    "MUTATED_INPUT",
    "NOT_REPRODUCIBLE",
    "NOT_INVARIANT",
    "TAMPERED",
    "PROTOCOL_ERROR",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "TIMEOUT",
    "UNSUPPORTED",
    "SUSPECT_TIMING",
    "INVALID_WORKLOAD",
]


# How alike two answers for one sequence are, from the best to the worst.
Likeness = Literal["same_bits", "within_budget", "differs"]
LIKENESSES: tuple[Likeness, ...] = ("same_bits", "within_budget", "differs")
# The questions of `gdnspec check --invariance`. Each compares a sequence, or a row, in two calls.
AGAIN, GRAPH, PIECES = "again", "graph", "pieces"
QUESTIONS: dict[str, str] = {
    AGAIN: "the same call again",
    "alone": "alone",
    "first": "first in the batch",
    "last": "last in the batch",
    "among_others": "among others",
    "other_lengths": "beside other lengths",
    GRAPH: "in a CUDA graph",
    PIECES: "in pieces",
}


class Outcome(Model):
    """The answer to one question of `gdnspec check --invariance` on one workload. `likeness` is the worst over the
    `compared` sequences; None: nothing was asked, and `message` says why. Otherwise `message` is the first
    difference."""

    likeness: Likeness | None = None
    compared: int = 0
    message: str = ""


class Place(Model):
    """The place of an output's largest error. `sequence` is a sequence, or a slot or checkpoint if the output consists
    of those. `vector` is the token within the sequence, or the row of a state."""

    sequence: int
    head: int
    vector: int
    element: int
    got: float | None  # None: not finite
    expected: float


class Bucket(Model):
    """The errors of the tokens at positions `first` to `last` of their sequences: the maximum over (sequence, head)."""

    first: int
    last: int
    relative_l2: float | None
    worst_vector: float | None


class OutputErrors(Model):
    """The errors of one output, each the maximum over (sequence, head), and their budgets."""

    output: str
    errors: dict[str, float | None]  # metric -> error; None: not finite
    budget: dict[str, float]
    worst: Place | None = None
    profile: list[Bucket] = Field(default_factory=list)  # errors by position, with --errors


class CheckResult(Model):
    """One verdict. `key` is a hash of everything that it depends on: results with equal keys are interchangeable."""

    schema_version: Version1 = 1
    definition: str
    definition_version: Version = 1
    workload: str
    suite: str
    solution: str
    device: str
    status: Status
    message: str = ""
    outputs: list[OutputErrors] = Field(default_factory=list)
    seconds: float = 0.0
    prepare_seconds: float | None = None
    isolation: str = ""
    repeat: str = ""
    seed: int | None = None  # of the second call's content
    # With --symmetries: the status of each; None if it does not apply.
    symmetries: dict[str, Status | None] = Field(default_factory=dict)
    # With --invariance, or if the manifest claims it: the answer to each question.
    invariance: dict[str, Outcome] = Field(default_factory=dict)
    key: str = ""
    environment: dict[str, Any] = Field(default_factory=dict)
    seal: str = ""  # of the judge that recorded it

    @property
    def failed(self) -> bool:
        """Whether the solution failed; UNSUPPORTED is not a failure."""
        return self.status not in ("PASSED", "UNSUPPORTED")

    @property
    def batch_invariant(self) -> bool | None:
        """Whether every question about the rest of the batch was answered with the same bits; None if none was
        asked. A CUDA graph can only deny it: its batch is the same."""
        found = {name: one.likeness for name, one in self.invariance.items() if one.likeness}
        if any(found.get(name, "same_bits") != "same_bits" for name in found.keys() - {AGAIN, PIECES}):
            return False
        return True if found.keys() - {AGAIN, GRAPH, PIECES} else None

    @property
    def pieces(self) -> Likeness | None:
        """How alike a prefill in one call and in pieces are; None if that was not asked."""
        return self.invariance[PIECES].likeness if PIECES in self.invariance else None
