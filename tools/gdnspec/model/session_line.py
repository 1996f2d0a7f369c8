"""A session: one line of definitions/<family>/sessions.jsonl. Several requests share one pool of state slots, and the
steps say what happens to them, one call or copy after the other."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gdnspec.model.base import Model
from gdnspec.model.budget import LIMITS, METRICS, Metric
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError, json_pointer
from gdnspec.model.workload import Figure, Positive

SessionSuite = Literal["smoke", "conformance"]
SESSION_SUITES: tuple[SessionSuite, ...] = ("smoke", "conformance")
MOST_TOKENS = 1 << 16  # of one step: the truth is a loop over tokens
MOST_DRAFTS = 16

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=64)]  # a request or a checkpoint
Slot = Annotated[int, Field(ge=0, lt=1 << 20)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Accepted = Annotated[int, Field(ge=0, le=MOST_DRAFTS)]
States = Literal["float32", "bfloat16"]


class Admit(Model):
    """A new request gets a slot. What the slot holds stays there: nobody may read it."""

    do: Literal["admit"]
    request: Label
    slot: Slot


class Kept(Model):
    """A checkpoint that a prefill takes on its way, after `at` tokens of the request."""

    at: Annotated[int, Field(ge=1, le=1 << 30)]
    checkpoint: Label
    slot: Slot


class Piece(Model):
    """The next tokens of one request, and the checkpoints on the way."""

    request: Label
    tokens: Tokens
    keep: Annotated[list[Kept], Field(max_length=1000)] = []


class Prefill(Model):
    """One call on pieces of several requests. On a pool, null pads: a sequence of one token that is nobody's; and
    `behind` rows of tokens follow the last sequence, as in a captured graph."""

    do: Literal["prefill"]
    rows: Annotated[list[Piece | None], Field(min_length=1, max_length=1000)]
    behind: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0

    @property
    def pieces(self) -> list[Piece]:
        """The rows that do not pad."""
        return [row for row in self.rows if row is not None]

    @property
    def keeps(self) -> bool:
        """Whether any row takes a checkpoint on its way."""
        return any(row.keep for row in self.pieces)


class Take(Model):
    """The state of a request is copied to a slot of its own, as a checkpoint."""

    do: Literal["take"]
    request: Label
    checkpoint: Label
    slot: Slot


class Restore(Model):
    """A request that has no token yet goes on from a checkpoint, whose tokens count as its own."""

    do: Literal["restore"]
    request: Label
    checkpoint: Label


class Fork(Model):
    """A new request goes on from the tokens that another has now, in a slot of its own."""

    do: Literal["fork"]
    request: Label
    new: Label
    slot: Slot


class Draft(Model):
    """One row of a verify: the slots of the states after each draft, and how many drafts turn out to be accepted."""

    request: Label
    slots: Annotated[list[Slot], Field(min_length=1, max_length=MOST_DRAFTS)]
    accept: Accepted


class Verify(Model):
    """One call that verifies `drafts` tokens of each row. null pads a row."""

    do: Literal["verify"]
    drafts: Annotated[int, Field(ge=1, le=MOST_DRAFTS)]
    rows: Annotated[list[Draft | None], Field(min_length=1, max_length=1000)]


class Commit(Model):
    """The state after the last accepted draft becomes that of the request's own slot."""

    do: Literal["commit"]
    request: Label


class RollBack(Model):
    """Fewer drafts of the last verify count as accepted."""

    do: Literal["roll_back"]
    request: Label
    accept: Accepted


class Branch(Model):
    """One row of a draft: its own number of tokens, none among them, and the place in the buffer of steps that gets
    the states after them. `parents`: the token that each one follows, counted from 0, or -1 for the request's state;
    without it, each follows the one before."""

    request: Label
    place: Slot
    tokens: Accepted
    parents: Annotated[list[int], Field(max_length=MOST_DRAFTS)] | None = None

    def path(self, count: int) -> list[int]:
        """The tokens that led to the one numbered `count`, counted from 1, itself the last; empty for 0."""
        found, at = [], count - 1
        while at >= 0:
            found.append(at)
            at = at - 1 if self.parents is None else self.parents[at]
        return found[::-1]


class DraftStep(Model):
    """One call that verifies another number of tokens in each row, at most `drafts`, and sets the states after them
    aside. The pool stays as it is until the tokens are settled. null pads a row."""

    do: Literal["draft"]
    drafts: Annotated[int, Field(ge=1, le=MOST_DRAFTS)]
    rows: Annotated[list[Branch | None], Field(min_length=1, max_length=1000)]

    @property
    def is_tree(self) -> bool:
        """Whether the tokens of any row branch."""
        return any(row is not None and row.parents is not None for row in self.rows)


class Settled(Model):
    """One row of a settle: the last token that counts, counted from 1; 0: none does."""

    request: Label
    accept: Accepted


class Settle(Model):
    """One call after a draft, once it is known what counts: the state after that token goes to the request's slot.
    null pads a row."""

    do: Literal["settle"]
    rows: Annotated[list[Settled | None], Field(min_length=1, max_length=1000)]


class Row(Model):
    """One row of a decode. `to`: the slot that the request has from this token on."""

    request: Label
    to: Slot | None = None


class Decode(Model):
    """One call with one token of each row. null pads a row."""

    do: Literal["decode"]
    rows: Annotated[list[Row | None], Field(min_length=1, max_length=1000)]


class Move(Model):
    """The state of a request is copied to another slot, and its old slot is free."""

    do: Literal["move"]
    request: Label
    slot: Slot


class Evict(Model):
    """A request loses its slot. Its state is kept outside of the pool."""

    do: Literal["evict"]
    request: Label


class Resume(Model):
    """An evicted request gets a slot again, and its state, or, with `recompute`, a prefill of all its tokens."""

    do: Literal["resume"]
    request: Label
    slot: Slot
    recompute: bool = False


class Drop(Model):
    """A checkpoint is forgotten, and its slot is free."""

    do: Literal["drop"]
    checkpoint: Label


class Finish(Model):
    """A request ends, and its slots are free. What they hold stays there."""

    do: Literal["finish"]
    request: Label


Step = Annotated[
    Admit
    | Prefill
    | Take
    | Restore
    | Fork
    | Verify
    | Commit
    | RollBack
    | DraftStep
    | Settle
    | Decode
    | Move
    | Evict
    | Resume
    | Drop
    | Finish,
    Field(discriminator="do"),
]

SessionBudget = dict[Name, dict[Name, dict[Metric, Positive]]]  # definition -> judged tensor -> metric


class SessionEmulators(Model):
    """The errors that a budget was computed from: by definition, judged tensor and metric, that of every emulator.
    `names` is the list in family.json that gives their order."""

    names: Name
    errors: dict[Name, dict[Name, dict[Metric, list[Figure]]]]


class SessionLine(Model):
    """Everything that fixes a session and the errors that it allows.

    `states`: how the pool stores states. `convolution`: whether tokens pass the convolution before the rule, with its
    state beside the recurrent one in a slot of the same number. `pooled`: prefills run on the pool itself, with slots
    and flags; checkpoints lie at absolute edges; and drafts are set aside, and settled later. Else states are gathered
    for a prefill, checkpoints count from its first token, and drafts have slots of the pool. `slots`: of the pool, and
    of the buffers of steps. `interval`: tokens between two states that a prefill keeps. `sha256`: of the drawn
    tokens. `steps_sha256`: of the steps that were frozen.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]
    suite: SessionSuite
    covers: Text | None = None
    preset: str
    regime: str
    seed: Annotated[int, Field(ge=0, lt=1 << 62)]
    states: States = "float32"
    convolution: bool = False
    pooled: bool = False
    slots: Annotated[int, Field(ge=1, le=1 << 20)]
    interval: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    steps: Annotated[list[Step], Field(min_length=1, max_length=20_000)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    steps_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    budget: SessionBudget | None = None
    emulators: SessionEmulators | None = None

    @field_validator("budget")
    @classmethod
    def _limited(cls, budget: SessionBudget | None) -> SessionBudget | None:
        for definition, tensors in (budget or {}).items():
            for tensor, limits in tensors.items():
                at = json_pointer(definition, tensor)
                for metric in METRICS:
                    if metric not in limits:
                        raise PlacedError(at, f"the budget has no limit for {metric}")
                for metric, limit in limits.items():
                    if limit > LIMITS[metric]:
                        message = f"{limit} is above {LIMITS[metric]}: such a budget lets wrong outputs pass"
                        raise PlacedError(f"{at}/{metric}", message)
        return budget

    @model_validator(mode="after")
    def _walked(self) -> "SessionLine":
        from gdnspec.model.ledger import walk  # it walks what is defined here

        walk(self)
        return self

    @property
    def steps_hash(self) -> str:
        """What `steps_sha256` is to be. A default value that a line spells out does not change it."""
        steps = [step.model_dump(mode="json", exclude_defaults=True) for step in self.steps]
        return hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()

    @property
    def kinds(self) -> list[str]:
        """The kinds of calls that the steps make, sorted: keys of the family's `sessions`."""
        return sorted({kind for step in self.steps for kind, _ in self.calls(step)})

    @property
    def drafts(self) -> int:
        """The tokens of a row in the buffer of steps; 1 if no step drafts."""
        return max((step.drafts for step in self.steps if isinstance(step, DraftStep)), default=1)

    @property
    def branches(self) -> bool:
        """Whether any drafts are a tree. The convolution's windows after all drafts are then set aside in a buffer of
        steps, as the states are: a wider state would have one order of tokens alone."""
        return any(isinstance(step, DraftStep) and step.is_tree for step in self.steps)

    def calls(self, step: Step) -> list[tuple[str, int]]:
        """The calls that a step makes: the kind of each, and its tokens, padding included."""
        if isinstance(step, Prefill):
            tokens = sum(row.tokens if row is not None else 1 for row in step.rows)
            if self.pooled:
                kinds = ("keep_absolute", "convolve_keep") if step.keeps else ("prefill_pool", "convolve")
            else:
                kinds = ("keep" if step.keeps else "prefill", "convolve")
        elif isinstance(step, Resume) and step.recompute:
            tokens, kinds = 0, ("prefill_pool" if self.pooled else "prefill", "convolve")
        elif isinstance(step, Decode):
            tokens, kinds = len(step.rows), ("decode", "convolve_one")
        elif isinstance(step, Verify):
            tokens, kinds = len(step.rows) * step.drafts, ("verify", "convolve")
        elif isinstance(step, DraftStep):
            tokens = len(step.rows) * step.drafts
            kinds = "tree" if step.is_tree else "draft", "convolve_tree" if self.branches else "convolve_drafts"
        else:
            return [("settle", len(step.rows))] if isinstance(step, Settle) else []
        return [(kind, tokens) for kind in kinds[: 1 + self.convolution]]
