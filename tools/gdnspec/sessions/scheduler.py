"""The judge's own scheduler: it serves the requests of a session with a solution's kernels, as an engine does.

It decides which slots a kernel reads and writes, which states are there, and what is copied. It knows no expected
value: the truth is computed elsewhere, from the steps alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gdnspec.model import session_line as steps
from gdnspec.model.session_line import SessionLine
from gdnspec.sessions.case import Pools
from gdnspec.sessions.kernels import SKIPPED, Kernels, with_mixed
from gdnspec.sessions.token_streams import Ref, Tokens


@dataclass
class Served:
    """An open request. `history`: the accepted tokens. `drafts`: the slots of its last verify, until the next decode or
    commit; the first `accepted` of them count. `window`: the convolution's state before that verify, and its tokens.
    `saved`: its states while it is evicted."""

    name: str
    slot: int
    history: list[Ref] = field(default_factory=list)
    used: int = 0
    drafts: list[int] = field(default_factory=list)
    accepted: int = 0
    window: tuple[Tensor | None, list[Ref]] = (None, [])
    saved: "Saved | None" = None

    @property
    def where(self) -> int:
        """The slot that holds its state."""
        return self.drafts[self.accepted - 1] if self.accepted else self.slot

    def next(self, count: int) -> list[Ref]:
        """The next tokens of its stream."""
        taken = [(self.name, self.used + i) for i in range(count)]
        self.used += count
        return taken


@dataclass(frozen=True)
class Saved:
    """States outside of the pool."""

    state: Tensor
    past: Tensor | None


@dataclass(frozen=True)
class Checkpoint:
    """A state in a slot of its own, and the tokens that it has seen."""

    slot: int
    history: list[Ref]


class Scheduler:
    """Serves one session. `pools`: the states, and those of the convolution in slots of the same numbers, or None. They
    are written in place. Call `serve` with each step."""

    def __init__(self, line: SessionLine, tokens: Tokens, kernels: Kernels, pools: Pools) -> None:
        self.line, self.tokens, self.kernels = line, tokens, kernels
        self.pool, self.past, self.steps, self.windows = pools.states, pools.pasts, pools.steps, pools.windows
        self.requests: dict[str, Served] = {}
        self.checkpoints: dict[str, Checkpoint] = {}

    def serve(self, step: steps.Step) -> None:
        """Does one step."""
        getattr(self, step.do)(step)

    # --- requests -----------------------------------------------------------------------------------------------

    def admit(self, step: steps.Admit) -> None:
        self.requests[step.request] = Served(step.request, step.slot)

    def finish(self, step: steps.Finish) -> None:
        del self.requests[step.request]

    def fork(self, step: steps.Fork) -> None:
        source = self.requests[step.request]
        self._copy(source.where, step.slot)
        self.requests[step.new] = Served(step.new, step.slot, list(source.history))

    def move(self, step: steps.Move) -> None:
        one = self.requests[step.request]
        if one.history:  # else its slot holds what nobody may read
            self._copy(one.slot, step.slot)
        one.slot = step.slot

    def evict(self, step: steps.Evict) -> None:
        one = self.requests[step.request]
        if one.history:
            past = self._past(one, True)
            one.saved = Saved(self.pool[one.slot].clone(), past)

    def resume(self, step: steps.Resume) -> None:
        one = self.requests[step.request]
        one.slot, saved, one.saved = step.slot, one.saved, None
        if step.recompute:
            self._prefilled([one], [one.history], [False], [[]])
            return
        if saved is not None:
            self.pool[one.slot] = saved.state
            if self.past is not None and saved.past is not None:
                self._return_past(one.slot, saved.past)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def take(self, step: steps.Take) -> None:
        one = self.requests[step.request]
        self._copy(one.where, step.slot)
        self.checkpoints[step.checkpoint] = Checkpoint(step.slot, list(one.history))

    def restore(self, step: steps.Restore) -> None:
        one, kept = self.requests[step.request], self.checkpoints[step.checkpoint]
        self._copy(kept.slot, one.slot)
        one.history = list(kept.history)

    def drop(self, step: steps.Drop) -> None:
        del self.checkpoints[step.checkpoint]

    # --- prefill ------------------------------------------------------------------------------------------------

    def prefill(self, step: steps.Prefill) -> None:
        rows = [self.requests[row.request] for row in step.pieces]
        flags = [bool(one.history) for one in rows]  # before this call's tokens count
        pieces = [one.next(row.tokens) for one, row in zip(rows, step.pieces, strict=True)]
        starts = [len(one.history) for one in rows]
        pasts = [self._past(one, flag) for one, flag in zip(rows, flags, strict=True)]
        kept = self._prefilled(rows, pieces, flags, [row.keep for row in step.pieces])
        for i, (one, row) in enumerate(zip(rows, step.pieces, strict=True)):
            for wanted in row.keep:
                count = wanted.at - starts[i]
                self.pool[wanted.slot] = kept[i][count // (self.line.interval or 1) - 1]
                if self.past is not None:
                    self.past[wanted.slot] = self._recent(pasts[i], pieces[i][:count])
                self.checkpoints[wanted.checkpoint] = Checkpoint(wanted.slot, one.history + pieces[i][:count])
            one.history += pieces[i]

    def _prefilled(
        self, rows: list[Served], pieces: list[list[Ref]], flags: list[bool], keep: Sequence[Sequence[steps.Kept]]
    ) -> list[Tensor]:
        """One call on a piece of each row. Returns the states on the way, of each row."""
        lengths = [len(piece) for piece in pieces]
        tokens = self.tokens.rows([ref for piece in pieces for ref in piece])
        before = self._gathered(rows, flags)
        mixed = None
        if self.past is not None:
            slots = [one.slot if length else SKIPPED for one, length in zip(rows, lengths, strict=True)]
            mixed = self.kernels.convolve(tokens, lengths, self.past, slots, flags)
        kept: list[Tensor] = []
        if any(keep):
            after, kept = self.kernels.keep(with_mixed(tokens, mixed), lengths, before, self.line.interval or 1)
        else:
            after = self.kernels.prefill(with_mixed(tokens, mixed), lengths, before)
        for one, state in zip(rows, after, strict=True):
            self.pool[one.slot] = state
        return kept

    def _gathered(self, rows: list[Served], flags: list[bool]) -> Tensor | None:
        """The states that a prefill starts from; None if no row has one."""
        if not any(flags):
            return None
        states = [self.pool[one.where].float() for one in rows]
        empty = torch.zeros_like(states[0])
        return torch.stack([state if flag else empty for state, flag in zip(states, flags, strict=True)])

    # --- decode and verify --------------------------------------------------------------------------------------

    def decode(self, step: steps.Decode) -> None:
        rows = [None if row is None else self.requests[row.request] for row in step.rows]
        refs = [None if one is None else one.next(1)[0] for one in rows]
        read, write = [], []
        for row, one in zip(step.rows, rows, strict=True):
            if row is None or one is None:
                read.append(SKIPPED)
                write.append(SKIPPED)
                continue
            self._cleared(one)
            read.append(one.where)
            if row.to is not None:
                self._copy_past(one.slot, row.to)
                one.slot = row.to
            write.append(one.slot)
        tokens = self.tokens.rows(refs)
        mixed = self._convolved(tokens, write)
        self.kernels.decode(with_mixed(tokens, mixed), self.pool, read, write)
        for ref, one in zip(refs, rows, strict=True):
            if one is not None and ref is not None:
                one.drafts, one.accepted = [], 0
                one.history.append(ref)

    def _convolved(self, tokens: dict[str, Tensor], slots: list[int]) -> Tensor | None:
        """One token of each row through the convolution."""
        return None if self.past is None else self.kernels.convolve_one(tokens, self.past, slots)

    def verify(self, step: steps.Verify) -> None:
        rows = [None if row is None else self.requests[row.request] for row in step.rows]
        pieces = [[None] * step.drafts if one is None else one.next(step.drafts) for one in rows]
        base, slots, accepted = [], [], []
        for row, one in zip(step.rows, rows, strict=True):
            if row is None or one is None:
                base.append(SKIPPED)
                slots.append([SKIPPED] * step.drafts)
                accepted.append(0)
                continue
            self._cleared(one)
            base.append(one.slot)
            slots.append(row.slots)
            accepted.append(one.accepted)  # of the verify before
        tokens = self.tokens.rows([ref for piece in pieces for ref in piece])
        mixed = self._convolved_drafts(rows, pieces, tokens)
        self.kernels.verify(with_mixed(tokens, mixed), step.drafts, self.pool, base, slots, accepted)
        for row, one, piece in zip(step.rows, rows, pieces, strict=True):
            if row is not None and one is not None:
                taken = [ref for ref in piece if ref is not None]
                one.drafts, one.accepted = list(row.slots), row.accept
                one.history += taken[: row.accept]
                self._settle_past(one)

    def _convolved_drafts(
        self, rows: list[Served | None], pieces: Sequence[Sequence[Ref | None]], tokens: dict[str, Tensor]
    ) -> Tensor | None:
        """The drafts through the convolution, which leaves its states after the last of them."""
        if self.past is None:
            return None
        flags = [one is not None and bool(one.history) for one in rows]
        for one, flag, piece in zip(rows, flags, pieces, strict=True):
            if one is not None:
                one.window = self._past(one, flag), [ref for ref in piece if ref is not None]
        slots = [SKIPPED if one is None else one.slot for one in rows]
        return self.kernels.convolve(tokens, [len(piece) for piece in pieces], self.past, slots, flags)

    def commit(self, step: steps.Commit) -> None:
        one = self.requests[step.request]
        if one.accepted:
            self.pool[one.slot] = self.pool[one.where]
        one.drafts, one.accepted = [], 0

    def roll_back(self, step: steps.RollBack) -> None:
        one = self.requests[step.request]
        del one.history[len(one.history) - one.accepted + step.accept :]
        one.accepted = step.accept
        self._settle_past(one)

    # --- copies -------------------------------------------------------------------------------------------------

    def _copy(self, source: int, target: int) -> None:
        self.pool[target] = self.pool[source]
        self._copy_past(source, target)

    def _copy_past(self, source: int, target: int) -> None:
        if self.past is not None:
            self.past[target] = self.past[source]

    def _cleared(self, one: Served) -> None:
        """Clears the slot of a request without a token: a row of a pool has no flag that says so."""
        if not one.history:
            self.pool[one.slot] = 0
            if self.past is not None:
                self.past[one.slot] = 0

    def _past(self, one: Served, flag: bool) -> Tensor | None:
        """A copy of the convolution's state of a request; None if it has none."""
        return self.past[one.slot].clone() if self.past is not None and flag else None

    def _return_past(self, slot: int, past: Tensor) -> None:
        if self.past is not None:
            self.past[slot] = past

    def _recent(self, before: Tensor | None, refs: list[Ref]) -> Tensor:
        """The convolution's state after these tokens."""
        return self.kernels.words.recent(before, self.tokens.rows(refs), self.tokens.weights)

    def _settle_past(self, one: Served) -> None:
        """Takes the convolution's state back to the last accepted draft."""
        if self.past is not None:
            before, drafted = one.window
            self.past[one.slot] = self._recent(before, drafted[: one.accepted])
