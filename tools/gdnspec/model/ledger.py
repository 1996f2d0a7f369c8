"""Walks the steps of a session: what each step needs, and what it changes. A step that cannot happen is a `PlacedError`
with its number and a JSON pointer."""

from collections.abc import Callable
from typing import Any

from gdnspec.model import session_line as line_model
from gdnspec.model.accounts import Accounts, Held
from gdnspec.model.errors import PlacedError

NOTHING_CALLED = "no step calls a kernel: add a prefill, a decode or a verify"
NOTHING_TAKEN = "no request takes a token: give one a row in a prefill, a decode or a verify"

# Steps of one scheduler alone, and the step that the other has for them.
ON_THE_POOL = {"draft": "verify", "settle": "commit"}
OFF_THE_POOL = {"verify": "draft and settle", "commit": "settle", "roll_back": "settle, with what counts"}


class Ledger(Accounts):
    """What has happened so far. `take` adds one step. Raises `PlacedError` with a pointer into that step."""

    def __init__(self, slots: int, states: str, interval: int | None, pooled: bool = False, wide: bool = False) -> None:
        self.slots, self.states, self.interval, self.pooled = slots, states, interval, pooled
        self.wide = wide  # whether the convolution's state holds the tokens of a draft
        self.open: dict[str, Held] = {}
        self.finished, self.used, self.checkpoints, self.dropped, self.owner, self.places = {}, {}, {}, {}, {}, {}
        self.drafted: int | None = None  # the tokens of a row in the buffer of steps
        self.number = 0  # of the step
        self.calls = 0

    def take(self, step: Any) -> None:
        """One more step."""
        self._known_here(step.do)
        getattr(self, f"_{step.do}")(step)
        self.number += 1

    def end(self) -> None:
        """Raises `PlacedError` if the session may not end here."""
        if self.open:
            names = ", ".join(sorted(self.open))
            raise PlacedError("", f"the session ends with open requests: {names}", "finish each of them")
        if not self.calls:
            raise PlacedError("", NOTHING_CALLED)
        if not any(self.used.values()):
            raise PlacedError("", NOTHING_TAKEN)

    def _known_here(self, do: str) -> None:
        if self.pooled and do in OFF_THE_POOL:
            message = "a session on the pool sets drafts aside"
            raise PlacedError("/do", message, f"{OFF_THE_POOL[do]}, or leave out `pooled`")
        if not self.pooled and do in ON_THE_POOL:
            message = "only a session on the pool has a buffer of steps"
            raise PlacedError("/do", message, f"set `pooled`, or {ON_THE_POOL[do]}")

    def _admit(self, step: line_model.Admit) -> None:
        self._new(step.request, "/request")
        self._claim(step.slot, f"request {step.request!r}", "/slot")
        self.open[step.request] = Held(step.slot)

    def _prefill(self, step: line_model.Prefill) -> None:
        if not self.pooled and (step.behind or None in step.rows):
            at = "/behind" if step.behind else f"/rows/{step.rows.index(None)}"
            raise PlacedError(at, "only a prefill on the pool pads", "set `pooled`, or leave padding out")
        if step.keeps and (step.behind or None in step.rows):
            raise PlacedError("/rows", "a prefill that keeps states on its way does not pad")
        self._distinct([row.request for row in step.pieces])
        if not any(row.tokens for row in step.pieces):
            raise PlacedError("/rows", "a prefill without a token calls nothing: give a row tokens")
        for i, row in enumerate(step.rows):
            if row is not None:
                one = self._settled(row.request, f"/rows/{i}/request", "prefilled")
                for j, kept in enumerate(row.keep):
                    self._keep(one, row, kept, f"/rows/{i}/keep/{j}")
        for row in step.pieces:
            self._add(row.request, row.tokens)
        self.calls += 1

    def _keep(self, one: Held, row: line_model.Piece, kept: line_model.Kept, at: str) -> None:
        if self.interval is None:
            message = "the session has no `interval`, so a prefill keeps no states"
            raise PlacedError(f"{at}/at", message, "give the session one, such as 64")
        new = kept.at - one.tokens
        if new < 1 or new > row.tokens:
            first, last = one.tokens + 1, one.tokens + row.tokens
            message = f"this row takes tokens {first} to {last} of {row.request!r}, so it has no state after {kept.at}"
            raise PlacedError(f"{at}/at", message)
        if self.pooled and kept.at % self.interval:
            message = f"a prefill keeps states at multiples of {self.interval} tokens of the request, not at {kept.at}"
            raise PlacedError(f"{at}/at", message)
        if not self.pooled and new % self.interval:
            message = f"a prefill keeps states every {self.interval} tokens of its own, and {kept.at} is its {new}th"
            raise PlacedError(f"{at}/at", message)
        self._checkpoint(kept.checkpoint, kept.slot, kept.at, at)

    def _take(self, step: line_model.Take) -> None:
        one = self._written(step.request, "kept as a checkpoint")
        self._checkpoint(step.checkpoint, step.slot, one.tokens, "")

    def _restore(self, step: line_model.Restore) -> None:
        one = self._settled(step.request, "/request", "restored")
        if one.tokens or one.used:
            message = f"request {step.request!r} has taken {one.used or one.tokens} tokens: restore before the first"
            raise PlacedError("/request", message)
        _, tokens = self._known(step.checkpoint)
        one.tokens = one.settled = tokens

    def _fork(self, step: line_model.Fork) -> None:
        source = self._written(step.request, "forked")
        self._new(step.new, "/new")
        self._claim(step.slot, f"request {step.new!r}", "/slot")
        self.open[step.new] = Held(step.slot, source.tokens, 0, source.tokens)

    def _verify(self, step: line_model.Verify) -> None:
        if self.states != "float32":
            message = f"no definition verifies drafts on {self.states} states in slots"
            hint = 'set `"pooled": true` and use draft and settle, or use float32 states, or decode'
            raise PlacedError("/do", message, hint)
        self._distinct([row.request for row in step.rows if row is not None])
        for i, row in enumerate(step.rows):
            if row is not None:
                self._drafted(step, row, f"/rows/{i}")
        for row in step.rows:
            if row is not None:
                one = self.open[row.request]
                self._add(row.request, step.drafts, row.accept, settled=False)
                one.drafts, one.accepted = list(row.slots), row.accept
        self.calls += 1

    def _drafted(self, step: line_model.Verify, row: line_model.Draft, at: str) -> None:
        one = self._resident(row.request, f"{at}/request", "verified")
        if len(row.slots) != step.drafts:
            message = f"the state after each draft needs a slot: drafts {step.drafts}, slots {len(row.slots)}"
            raise PlacedError(f"{at}/slots", message)
        if row.accept > step.drafts:
            raise PlacedError(f"{at}/accept", *_too_many(row.accept, step.drafts))
        if one.drafts and one.drafts != row.slots:
            message = f"the last drafts of {row.request!r} are in slots {one.drafts} and not committed"
            raise PlacedError(f"{at}/slots", message, "commit them, or verify in the same slots")
        if row.accept == 0 and one.settled != one.tokens:
            message = f"accepts nothing, and the call overwrites the state of {row.request!r} that it started from"
            raise PlacedError(f"{at}/accept", message, "commit before this verify")
        if not one.drafts:
            for j, slot in enumerate(row.slots):
                self._claim(slot, f"the drafts of {row.request!r}", f"{at}/slots/{j}")

    def _commit(self, step: line_model.Commit) -> None:
        one = self._resident(step.request, "/request", "committed")
        if not one.drafts:
            raise PlacedError("/request", f"request {step.request!r} has no drafts to commit: verify some first")
        self._release(one.drafts)
        one.drafts, one.accepted, one.settled = [], 0, one.tokens

    def _roll_back(self, step: line_model.RollBack) -> None:
        one = self._resident(step.request, "/request", "rolled back")
        if not one.drafts:
            raise PlacedError("/request", f"request {step.request!r} has no drafts to roll back: verify some first")
        if step.accept > one.accepted:
            message = f"rolls back to {step.accept} accepted drafts, but the verify accepted only {one.accepted}"
            raise PlacedError("/accept", message, f"accept at most {one.accepted}")
        tokens = one.tokens - one.accepted + step.accept
        if step.accept == 0 and one.settled != tokens:
            message = f"the state of {step.request!r} before its last verify is overwritten: keep one draft at least"
            raise PlacedError("/accept", message, "commit before the verify that may be rolled back")
        one.tokens, one.accepted = tokens, step.accept

    def _draft(self, step: line_model.DraftStep) -> None:
        if self.drafted not in (None, step.drafts):
            message = f"the buffer of steps has {self.drafted} tokens for each row, not {step.drafts}"
            raise PlacedError("/drafts", message, "use one number in all steps of the session")
        self.drafted = step.drafts
        self._distinct([row.request for row in step.rows if row is not None])
        for i, row in enumerate(step.rows):
            if row is None:
                continue
            self._settled(row.request, f"/rows/{i}/request", "drafted")
            if row.tokens > step.drafts:
                raise PlacedError(f"/rows/{i}/tokens", f"{row.tokens} tokens, but a row has at most {step.drafts}")
            self._check_parents(row, f"/rows/{i}/parents")
            self._place(row, f"/rows/{i}/place")
        for row in step.rows:
            if row is not None:
                self._add(row.request, row.tokens, 0, settled=False)
                self.open[row.request].pending = row
        self.calls += 1

    def _check_parents(self, row: line_model.Branch, at: str) -> None:
        if row.parents is None:
            return
        if len(row.parents) != row.tokens:
            raise PlacedError(at, f"{len(row.parents)} parents for {row.tokens} tokens: each needs one")
        for t, parent in enumerate(row.parents):
            if not -1 <= parent < t:
                raise PlacedError(f"{at}/{t}", f"token {t} follows {parent}: a parent comes before, or is -1")

    def _settle(self, step: line_model.Settle) -> None:
        self._distinct([row.request for row in step.rows if row is not None])
        for i, row in enumerate(step.rows):
            if row is None:
                continue
            one = self._resident(row.request, f"/rows/{i}/request", "settled")
            if one.pending is None:
                message = f"request {row.request!r} has nothing to settle: draft first"
                raise PlacedError(f"/rows/{i}/request", message)
            if row.accept > one.pending.tokens:
                raise PlacedError(f"/rows/{i}/accept", *_too_many(row.accept, one.pending.tokens))
            if self.wide and one.pending.tokens and not row.accept:
                message = "accepts nothing, and the convolution's state has no place before the first token"
                raise PlacedError(f"/rows/{i}/accept", message, "accept one at least")
        for row in step.rows:
            if row is not None:
                one = self.open[row.request]
                assert one.pending is not None
                one.tokens += len(one.pending.path(row.accept))
                one.settled = one.tokens
                self._unplace(one)
        if self.drafted is None:
            raise PlacedError("/do", "no step drafts before this one")
        self.calls += 1

    def _decode(self, step: line_model.Decode) -> None:
        self._distinct([row.request for row in step.rows if row is not None])
        for i, row in enumerate(step.rows):
            if row is None:
                continue
            one = self._resident(row.request, f"/rows/{i}/request", "decoded")
            if one.pending is not None:
                message = f"request {row.request!r} has drafts that are not settled, so it cannot be decoded"
                raise PlacedError(f"/rows/{i}/request", message, "settle first, what counts or nothing")
            if row.to is not None:
                self._claim(row.to, f"request {row.request!r}", f"/rows/{i}/to")
        for row in step.rows:
            if row is None:
                continue
            one = self.open[row.request]
            self._release(one.drafts)
            if row.to is not None:
                self._release([one.slot])
                one.slot = row.to
            one.drafts, one.accepted = [], 0
            self._add(row.request, 1)
        self.calls += 1

    def _move(self, step: line_model.Move) -> None:
        one = self._settled(step.request, "/request", "moved")
        self._claim(step.slot, f"request {step.request!r}", "/slot")
        self._release([one.slot])
        one.slot = step.slot

    def _evict(self, step: line_model.Evict) -> None:
        one = self._settled(step.request, "/request", "evicted")
        self._release([one.slot])
        one.slot = None

    def _resume(self, step: line_model.Resume) -> None:
        one = self._request(step.request, "/request")
        if one.slot is not None:
            message = f"request {step.request!r} has slot {one.slot}: only an evicted request is resumed"
            raise PlacedError("/request", message)
        if step.recompute and not one.tokens:
            raise PlacedError("/recompute", f"request {step.request!r} has no token to compute again")
        self._claim(step.slot, f"request {step.request!r}", "/slot")
        one.slot = step.slot
        self.calls += step.recompute

    def _drop(self, step: line_model.Drop) -> None:
        slot, _ = self._known(step.checkpoint)
        self._release([slot])
        del self.checkpoints[step.checkpoint]
        self.dropped[step.checkpoint] = self.number

    def _finish(self, step: line_model.Finish) -> None:
        one = self._request(step.request, "/request")  # an evicted one has no slot to release
        self._release([one.slot, *one.drafts])
        self._unplace(one)
        del self.open[step.request]
        self.finished[step.request] = self.number


def _too_many(accepted: int, drafted: int) -> tuple[str, str]:
    """What is wrong, and the hint."""
    only = "1 is" if drafted == 1 else f"{drafted} are"
    return f"accepts {accepted} tokens, but only {only} drafted", f"accept at most {drafted}"


def walk(line: "line_model.SessionLine", follow: Callable[[Ledger, Any], None] | None = None) -> Ledger:
    """The account after all steps; `follow` sees it after each. Raises `PlacedError` for the first wrong step."""
    ledger = Ledger(line.slots, line.states, line.interval, line.pooled, line.convolution and not line.branches)
    for i, step in enumerate(line.steps):
        try:
            ledger.take(step)
        except PlacedError as error:
            message = f"step {i} ({step.do}): {error.message}"
            raise PlacedError(f"/steps/{i}{error.pointer}", message, error.hint) from None
        if follow is not None:
            follow(ledger, step)
    try:
        ledger.end()
    except PlacedError as error:
        last = len(line.steps) - 1
        raise PlacedError(f"/steps/{last}", f"step {last} ({line.steps[-1].do}): {error.message}", error.hint) from None
    return ledger
