"""What every step of a session must leave behind: one recurrence in float64 over the tokens that each request accepted.

Nothing here knows how the scheduler works. A request is the list of its accepted tokens and the memory after them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.inputs.session_contract import Memory, SessionWords
from gdnspec.model import session_line as steps
from gdnspec.model.session_line import SessionLine
from gdnspec.sessions.token_streams import Ref, Tokens


@dataclass(frozen=True, eq=False)
class Expected:
    """What a step leaves behind. `outputs`: of its calls, by kind. `states`, `pasts`: by slot, what each slot holds
    that the step writes; `pasts` are the convolution's. `steps`, `windows`: the same of the buffers of steps, by
    place * drafts + token; `windows` are the convolution's."""

    outputs: Mapping[str, Tensor]
    states: Mapping[int, Tensor]
    pasts: Mapping[int, Tensor]
    steps: Mapping[int, Tensor]
    windows: Mapping[int, Tensor]


@dataclass
class _Request:
    name: str
    slot: int
    history: list[Ref] = field(default_factory=list)
    memory: Memory | None = None
    used: int = 0
    drafts: list[int] = field(default_factory=list)
    accepted: int = 0
    after: list[Memory] = field(default_factory=list)  # after 0, 1, .. of the last drafts
    pending: "tuple[steps.Branch, list[Ref]] | None" = None  # the last draft and its tokens, until it is settled


class Truth:
    """Follows a session. `expected` says what the next step leaves behind."""

    def __init__(self, line: SessionLine, tokens: Tokens, words: SessionWords, axes: Mapping[str, int]) -> None:
        self.line, self.tokens, self.words, self.axes = line, tokens, words, axes
        self.requests: dict[str, _Request] = {}
        self.checkpoints: dict[str, tuple[int, list[Ref], Memory | None]] = {}
        self._outputs: dict[str, Tensor] = {}
        self._written: dict[int, Memory | None] = {}
        self._pasts: dict[int, Memory | None] = {}
        self._set_aside: dict[int, Memory] = {}  # in the buffers of steps
        self._windows: dict[int, Tensor] = {}  # of the convolution, with the tokens that are not settled

    def expected(self, step: steps.Step) -> Expected:
        """What this step leaves behind. Raises `InvalidWorkload` if it is not finite."""
        self._outputs, self._written, self._pasts, self._set_aside = {}, {}, {}, {}
        self._windows = {}
        getattr(self, f"_{step.do}")(step)
        states = {slot: self._or_nothing(memory).state for slot, memory in self._written.items()}
        pasts = {}
        for slot, memory in self._pasts.items() if self.line.convolution else ():
            past = self._or_nothing(memory).past
            assert past is not None
            pasts[slot] = past
        pasts |= self._windows
        aside = {place: memory.state for place, memory in self._set_aside.items()}
        windows = {}
        for place, memory in self._set_aside.items() if self.line.convolution and self.line.branches else ():
            assert memory.past is not None
            windows[place] = memory.past
        for value in (x for of in (self._outputs, states, pasts, aside, windows) for x in of.values()):
            if not bool(torch.isfinite(value).all()):
                raise InvalidWorkload(f"what a {step.do} must leave is not finite")
        return Expected(self._outputs, states, pasts, aside, windows)

    def _or_nothing(self, memory: Memory | None) -> Memory:
        """The memory, or that of no token: zeros."""
        return memory if memory is not None else self._advanced([], None, [0])[2][0]

    def _advanced(
        self, refs: Sequence[Ref], before: Memory | None, keep: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, dict[int, Memory]]:
        return self.words.advance(self.tokens.rows(refs), self.tokens.weights, self.axes, before, keep)

    def _write(self, slot: int, memory: Memory | None, past: bool = True) -> None:
        self._written[slot] = memory
        if past:
            self._pasts[slot] = memory

    # --- calls --------------------------------------------------------------------------------------------------

    def _prefill(self, step: steps.Prefill) -> None:
        outputs: list[Tensor | None] = []
        mixed: list[Tensor | None] = []
        for row in step.rows:
            if row is None:
                outputs.append(None)
                mixed.append(None)
                continue
            one = self.requests[row.request]
            piece = self._next(one, row.tokens)
            counts = [kept.at - len(one.history) for kept in row.keep]
            o, y, after = self._advanced(piece, one.memory, [*counts, row.tokens])
            outputs.append(o)
            mixed.append(y)
            for kept, count in zip(row.keep, counts, strict=True):
                self._write(kept.slot, after[count])
                self.checkpoints[kept.checkpoint] = kept.slot, one.history + piece[:count], after[count]
            if row.tokens or one.history:
                one.memory = after[row.tokens]
            if row.tokens or step.keeps or not self.line.pooled:  # on a pool, nothing is written without a token
                self._write(one.slot, one.memory, past=row.tokens > 0)
            one.history += piece
        rule, *_ = kinds = [kind for kind, _ in self.line.calls(step)]
        self._answer(rule, self._padded(outputs, 1))
        self._answer_mixed(kinds[-1], mixed)

    def _decode(self, step: steps.Decode) -> None:
        outputs: list[Tensor | None] = []
        mixed: list[Tensor | None] = []
        for row in step.rows:
            if row is None:
                outputs.append(None)
                mixed.append(None)
                continue
            one = self.requests[row.request]
            self._cleared(one)
            piece = self._next(one, 1)
            o, y, after = self._advanced(piece, one.memory, [1])
            outputs.append(o)
            mixed.append(y)
            one.history, one.memory, one.drafts, one.accepted = one.history + piece, after[1], [], 0
            one.slot = one.slot if row.to is None else row.to
            self._write(one.slot, one.memory)
        self._answer("decode", self._padded(outputs, 1).unsqueeze(1))
        self._answer_mixed("convolve_one", mixed, 1)

    def _verify(self, step: steps.Verify) -> None:
        outputs: list[Tensor | None] = []
        mixed: list[Tensor | None] = []
        for row in step.rows:
            if row is None:
                outputs.append(None)
                mixed.append(None)
                continue
            one = self.requests[row.request]
            self._cleared(one)
            piece = self._next(one, step.drafts)
            o, y, after = self._advanced(piece, one.memory, range(step.drafts + 1))
            outputs.append(o)
            mixed.append(y)
            one.drafts, one.accepted = list(row.slots), row.accept
            one.after = [after[t] for t in range(step.drafts + 1)]
            one.history, one.memory = one.history + piece[: row.accept], after[row.accept]
            for t, slot in enumerate(row.slots):
                self._write(slot, after[t + 1], past=False)
            self._pasts[one.slot] = one.memory
        padded = self._padded(outputs, step.drafts)
        self._answer("verify", padded.reshape(-1, step.drafts, *padded.shape[1:]))
        self._answer_mixed("convolve", mixed, step.drafts)

    def _resume(self, step: steps.Resume) -> None:
        one = self.requests[step.request]
        one.slot = step.slot
        if one.history:
            self._write(one.slot, one.memory)
        if step.recompute:
            o, y, _ = self._advanced(one.history, None, [])
            rule, *_ = kinds = [kind for kind, _ in self.line.calls(step)]
            self._answer(rule, o)
            self._answer_mixed(kinds[-1], [y])

    def _draft(self, step: steps.DraftStep) -> None:
        outputs: list[Tensor | None] = []
        mixed: list[Tensor | None] = []
        for row in step.rows:
            if row is None:
                outputs.append(None)
                mixed.append(None)
                continue
            one = self.requests[row.request]
            self._cleared(one)
            piece = self._next(one, row.tokens)
            one.pending = row, piece
            o, y = self._drafted(step, row, one, piece)
            outputs.append(o)
            mixed.append(y)
        rule, *_ = kinds = [kind for kind, _ in self.line.calls(step)]
        padded = self._padded(outputs, step.drafts)
        self._answer(rule, padded.reshape(-1, step.drafts, *padded.shape[1:]))
        if self.line.convolution:
            padded = self._padded(mixed, step.drafts)
            self._answer(kinds[-1], padded.reshape(-1, step.drafts, *padded.shape[1:]))

    def _drafted(
        self, step: steps.DraftStep, row: steps.Branch, one: _Request, piece: list[Ref]
    ) -> tuple[Tensor, Tensor | None]:
        """The outputs of one row, padded to all its tokens; each is that of the last token of its path."""
        like, like_mixed, _ = self._advanced([], one.memory, [])
        o = like.new_zeros(step.drafts, *like.shape[1:])
        y = None if like_mixed is None else like_mixed.new_zeros(step.drafts, *like_mixed.shape[1:])
        for t in range(row.tokens):
            path = [piece[i] for i in row.path(t + 1)]
            along, mixed, after = self._advanced(path, one.memory, [len(path)])
            o[t] = along[-1]
            if y is not None and mixed is not None:
                y[t] = mixed[-1]
            self._set_aside[row.place * self.line.drafts + t] = after[len(path)]
        if row.tokens and self.line.convolution and not self.line.branches:
            past = self._or_nothing(one.memory).past
            assert past is not None
            inputs = self.words.inputs("convolve", self.tokens.rows(piece), self.tokens.weights, self.axes, 1)
            self._windows[one.slot] = torch.cat([past[:, 1:], inputs["x"].double().mT], 1)
        return o, y

    def _settle(self, step: steps.Settle) -> None:
        for row in step.rows:
            if row is None:
                continue
            one = self.requests[row.request]
            assert one.pending is not None
            branch, piece = one.pending
            path = [piece[i] for i in branch.path(row.accept)]
            if path:
                one.memory = self._advanced(path, one.memory, [len(path)])[2][len(path)]
                self._write(one.slot, one.memory, past=self.line.branches)  # else its window moves by a count
            one.history, one.pending = one.history + path, None

    def _cleared(self, one: _Request) -> None:
        if not one.history:
            self._write(one.slot, None)

    def _answer(self, kind: str, output: Tensor) -> None:
        self._outputs[kind] = output

    def _answer_mixed(self, kind: str, rows: Sequence[Tensor | None], each: int = 1) -> None:
        if self.line.convolution:
            self._answer(kind, self._padded(rows, each))

    def _padded(self, rows: Sequence[Tensor | None], each: int) -> Tensor:
        """The rows one after the other; zeros for those that pad."""
        like = next((row for row in rows if row is not None), None)
        if like is None:
            o, y, _ = self._advanced([], None, [])
            like = o if self._outputs == {} or y is None else y
        empty = like.new_zeros(each, *like.shape[1:])
        return torch.cat([empty if row is None else row for row in rows])

    # --- the rest -----------------------------------------------------------------------------------------------

    def _admit(self, step: steps.Admit) -> None:
        self.requests[step.request] = _Request(step.request, step.slot)

    def _take(self, step: steps.Take) -> None:
        one = self.requests[step.request]
        self.checkpoints[step.checkpoint] = step.slot, list(one.history), one.memory
        self._write(step.slot, one.memory)

    def _restore(self, step: steps.Restore) -> None:
        one = self.requests[step.request]
        _, history, one.memory = self.checkpoints[step.checkpoint]
        one.history = list(history)
        self._write(one.slot, one.memory)

    def _fork(self, step: steps.Fork) -> None:
        source = self.requests[step.request]
        self.requests[step.new] = replace(
            source, name=step.new, slot=step.slot, used=0, history=list(source.history), after=[]
        )
        self._write(step.slot, source.memory)

    def _commit(self, step: steps.Commit) -> None:
        one = self.requests[step.request]
        if one.accepted:
            self._write(one.slot, one.memory, past=False)
        one.drafts, one.accepted, one.after = [], 0, []

    def _roll_back(self, step: steps.RollBack) -> None:
        one = self.requests[step.request]
        del one.history[len(one.history) - one.accepted + step.accept :]
        one.accepted, one.memory = step.accept, one.after[step.accept]
        self._pasts[one.slot] = one.memory

    def _move(self, step: steps.Move) -> None:
        one = self.requests[step.request]
        one.slot = step.slot
        if one.history:  # else there is nothing to copy
            self._write(one.slot, one.memory)

    def _evict(self, step: steps.Evict) -> None:
        """The pool stays as it is."""

    def _drop(self, step: steps.Drop) -> None:
        del self.checkpoints[step.checkpoint]

    def _finish(self, step: steps.Finish) -> None:
        del self.requests[step.request]

    def _next(self, one: _Request, count: int) -> list[Ref]:
        taken = [(one.name, one.used + i) for i in range(count)]
        one.used += count
        return taken
