"""The judge's scheduler for sessions on the pool: prefill, drafts and the convolution work on slots, as in engines.

What differs from `Scheduler`: a prefill reads and writes the slots of its requests itself. Checkpoints lie at absolute
edges, and the convolution's state there comes from the call. The states after drafts are set aside in a buffer of steps
until they are settled. The convolution's state in a slot then holds the tokens of the whole draft, and its window is
where the accepted ones end. Where drafts branch, its windows are set aside as well, and one of them is copied.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gdnspec.model import session_line as steps
from gdnspec.model.session_line import SessionLine
from gdnspec.sessions.case import Pools
from gdnspec.sessions.kernels import SKIPPED, Kernels, with_mixed
from gdnspec.sessions.scheduler import Checkpoint, Scheduler, Served
from gdnspec.sessions.token_streams import Ref, Tokens


class PoolScheduler(Scheduler):
    """Serves one session. `accepted`: how many tokens of its last draft count, by the slot of the convolution's state;
    1 after any other call. `pending`: the last draft of each request and its tokens, until they are settled."""

    def __init__(self, line: SessionLine, tokens: Tokens, kernels: Kernels, pools: Pools) -> None:
        super().__init__(line, tokens, kernels, pools)
        self.accepted: dict[int, int] = {}
        self.pending: dict[str, tuple[steps.Branch, list[Ref]]] = {}

    def finish(self, step: steps.Finish) -> None:
        self.pending.pop(step.request, None)
        super().finish(step)

    # --- prefill ------------------------------------------------------------------------------------------------

    def prefill(self, step: steps.Prefill) -> None:
        rows = [None if row is None else self.requests[row.request] for row in step.rows]
        pieces: list[Sequence[Ref | None]] = []
        for row, one in zip(step.rows, rows, strict=True):
            pieces.append([None] if row is None or one is None else one.next(row.tokens))
        if step.keeps:
            self._kept(step, pieces)
        else:
            self._on_pool(rows, pieces, step.behind)
        for one, piece in zip(rows, pieces, strict=True):
            if one is not None:
                one.history += [ref for ref in piece if ref is not None]

    def _prefilled(
        self, rows: list[Served], pieces: list[list[Ref]], flags: list[bool], keep: Sequence[Sequence[steps.Kept]]
    ) -> list[Tensor]:
        """A prefill of all tokens of a request that was evicted: its new slot holds nothing."""
        self._on_pool([*rows], [*pieces], 0, flags)
        return []

    def _on_pool(
        self, rows: list[Served | None], pieces: Sequence[Sequence[Ref | None]], behind: int,
        flags: list[bool] | None = None,
    ) -> None:  # fmt: skip
        """One call on the slots of the rows. None pads."""
        lengths = [len(piece) for piece in pieces]
        if flags is None:
            flags = [one is not None and bool(one.history) for one in rows]  # before this call's tokens count
        slots = [SKIPPED if one is None else one.slot for one in rows]
        real: list[Ref | None] = [ref for piece in pieces for ref in piece]
        mixed = None
        if self.past is not None:
            there = [slot if length else SKIPPED for slot, length in zip(slots, lengths, strict=True)]
            mixed = self.kernels.convolve(self.tokens.rows(real), lengths, self._fronts(there), there, flags)
            mixed = mixed if not behind else _with_rows(mixed, behind)
        tokens = with_mixed(self.tokens.rows(real + [None] * behind), mixed)
        self.kernels.prefill_pool(tokens, lengths, self.pool, slots, flags, behind)

    def _kept(self, step: steps.Prefill, pieces: Sequence[Sequence[Ref | None]]) -> None:
        """One call that keeps states at the edges that it meets. States are gathered for it."""
        rows, interval = [self.requests[row.request] for row in step.pieces], self.line.interval or 1
        refs = [[ref for ref in piece if ref is not None] for piece in pieces]
        lengths, starts = [len(piece) for piece in refs], [len(one.history) for one in rows]
        flags = [bool(one.history) for one in rows]
        tokens = self.tokens.rows([ref for piece in refs for ref in piece])
        before, mixed = self._gathered(rows, flags), None
        pasts: list[Tensor] = []
        if self.past is not None:
            slots = [one.slot if length else SKIPPED for one, length in zip(rows, lengths, strict=True)]
            fronts = self._fronts(slots)
            mixed, pasts = self.kernels.convolve_keep(tokens, lengths, fronts, slots, flags, interval, starts)
        after, kept = self.kernels.keep_absolute(with_mixed(tokens, mixed), lengths, before, interval, starts)
        for i, (one, row) in enumerate(zip(rows, step.pieces, strict=True)):
            self.pool[one.slot] = after[i]
            for wanted in row.keep:
                edge = wanted.at // interval - starts[i] // interval - 1
                self.pool[wanted.slot] = kept[i][edge]
                if self.past is not None:
                    self._put_past(wanted.slot, pasts[i][edge])
                count = wanted.at - starts[i]
                self.checkpoints[wanted.checkpoint] = Checkpoint(wanted.slot, one.history + refs[i][:count])

    # --- drafts -------------------------------------------------------------------------------------------------

    def draft(self, step: steps.DraftStep) -> None:
        assert self.steps is not None
        rows = [None if row is None else self.requests[row.request] for row in step.rows]
        refs: list[Ref | None] = []
        slots, places, counts, parents = [], [], [], []
        for row, one in zip(step.rows, rows, strict=True):
            if row is None or one is None:
                slots.append(SKIPPED)
                places.append(SKIPPED)
                counts.append(step.drafts)
                parents.append(list(range(-1, step.drafts - 1)))
                refs += [None] * step.drafts
                continue
            self._cleared(one)
            taken = one.next(row.tokens)
            slots.append(one.slot)
            places.append(row.place)
            counts.append(row.tokens)
            parents.append(_parents(row, step.drafts))
            refs += [*taken, *[None] * (step.drafts - row.tokens)]
            self.pending[one.name] = row, taken
        tokens = self.tokens.rows(refs)
        mixed = self._convolved_draft(tokens, step.drafts, slots, places, counts, parents)
        self.kernels.draft(
            with_mixed(tokens, mixed), step.drafts, self.pool, slots, self.steps, places, counts,
            parents if step.is_tree else None,
        )  # fmt: skip

    def _convolved_draft(
        self, tokens: dict[str, Tensor], each: int, slots: list[int], places: list[int], counts: list[int],
        parents: list[list[int]],
    ) -> Tensor | None:  # fmt: skip
        """The tokens of a draft through the convolution. Its windows are set aside, or its state holds all tokens, and
        the window is where the last accepted ones end."""
        if self.past is None:
            return None
        if self.windows is not None:
            return self.kernels.convolve_tree(
                tokens, each, self.past, slots, self.windows, places, counts, parents
            ).flatten(0, 1)  # fmt: skip
        accepted = [self.accepted.get(slot, 1) for slot in slots]
        return self.kernels.convolve_drafts(tokens, each, self.past, slots, accepted, counts).flatten(0, 1)

    def settle(self, step: steps.Settle) -> None:
        assert self.steps is not None
        slots, places, accepted = [], [], []
        for row in step.rows:
            if row is None:
                slots.append(SKIPPED)
                places.append(SKIPPED)
                accepted.append(self.line.drafts)
                continue
            one, (branch, taken) = self.requests[row.request], self.pending.pop(row.request)
            slots.append(one.slot)
            places.append(branch.place)
            accepted.append(row.accept)
            one.history += [taken[i] for i in branch.path(row.accept)]
            if row.accept:
                self._settle_window(one.slot, branch.place, row.accept)
        self.kernels.settle(self.pool, slots, self.steps, places, accepted)

    # --- the convolution's state --------------------------------------------------------------------------------

    def _settle_window(self, slot: int, place: int, accepted: int) -> None:
        """The window after the last token that counts, counted from 1, becomes that of the slot."""
        if self.past is not None and self.windows is not None:
            self.past[slot] = self.windows[place, accepted - 1]
        else:
            self.accepted[slot] = accepted

    def _convolved(self, tokens: dict[str, Tensor], slots: list[int]) -> Tensor | None:
        return None if self.past is None else self.kernels.convolve_one(tokens, self._fronts(slots), slots)

    def _window(self, slot: int) -> Tensor:
        """The last inputs of a slot's request."""
        assert self.past is not None
        first = self.accepted.get(slot, 1) - 1
        return self.past[slot, ..., first : first + self._width]

    @property
    def _width(self) -> int:
        """Of a window."""
        assert self.past is not None
        return self.past.shape[-1] - (self.line.drafts - 1 if self.windows is None else 0)

    def _put_past(self, slot: int, window: Tensor) -> None:
        assert self.past is not None
        self.past[slot, ..., : window.shape[-1]] = window
        self.accepted[slot] = 1

    def _fronts(self, slots: list[int]) -> Tensor:
        """The part of the convolution's states that calls without drafts know, after the windows of these slots have
        moved there."""
        assert self.past is not None
        for slot in slots:
            if slot != SKIPPED:
                self._put_past(slot, self._window(slot).clone())
        return self.past[..., : self._width]

    def _copy_past(self, source: int, target: int) -> None:
        if self.past is not None:
            self._put_past(target, self._window(source).clone())

    def _past(self, one: Served, flag: bool) -> Tensor | None:
        return self._window(one.slot).clone() if self.past is not None and flag else None

    def _return_past(self, slot: int, past: Tensor) -> None:
        self._put_past(slot, past)

    def _cleared(self, one: Served) -> None:
        super()._cleared(one)
        if not one.history:
            self.accepted[one.slot] = 1


def _parents(row: steps.Branch, drafts: int) -> list[int]:
    """The parent of each token of a row, and of those that are not there."""
    chain = list(range(-1, drafts - 1))
    return chain if row.parents is None else [*row.parents, *chain[row.tokens :]]


def _with_rows(x: Tensor, more: int) -> Tensor:
    """x with rows of zeros behind it."""
    return torch.cat([x, x.new_zeros(more, *x.shape[1:])])
