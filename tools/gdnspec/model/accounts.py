"""Who has what in a session: requests, their tokens, slots of the pool, checkpoints, places in the buffer of steps."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import islice

from gdnspec.model import session_line as line_model
from gdnspec.model.errors import MOST_NAMED, PlacedError, nearest


@dataclass
class Held:
    """An open request. `tokens`: accepted ones. `used`: tokens of its stream that were taken, rejected drafts too.
    `slot`: None while it is evicted. `settled`: tokens that the state in its own slot has seen. `drafts`: the slots of
    its last verify, until that is committed; `accepted` of them count. `pending`: its last draft, until it is
    settled."""

    slot: int | None
    tokens: int = 0
    used: int = 0
    settled: int = 0
    drafts: list[int] = field(default_factory=list)
    accepted: int = 0
    pending: "line_model.Branch | None" = None


class Accounts:
    """The accounts that a ledger keeps. What cannot be is a `PlacedError`, at a pointer into the step that asked."""

    slots: int  # of the pool
    open: dict[str, Held]
    finished: dict[str, int]  # request -> number of the step
    used: dict[str, int]  # request -> tokens of its stream
    checkpoints: dict[str, tuple[int, int]]  # name -> slot and tokens
    dropped: dict[str, int]  # checkpoint -> number of the step
    owner: dict[int, str]  # slot -> whose it is, in words
    places: dict[int, str]  # place in the buffer of steps -> whose it is

    def _new(self, name: str, at: str) -> None:
        if name in self.open:
            raise PlacedError(at, f"request {name!r} is open already: a new one needs a name of its own")
        if name in self.finished:
            message = f"request {name!r} was finished in step {self.finished[name]}: a new one needs a name of its own"
            raise PlacedError(at, message)
        self.used[name] = 0

    def _request(self, name: str, at: str) -> Held:
        if name in self.finished:
            message = f"request {name!r} was finished in step {self.finished[name]}"
            raise PlacedError(at, message, "use it before, or admit a new one")
        if name not in self.open:
            hint = nearest(name, self.open) if self.open else "admit it first"
            raise PlacedError(at, f"request {name!r} was never admitted", hint)
        return self.open[name]

    def _resident(self, name: str, at: str, verb: str) -> Held:
        one = self._request(name, at)
        if one.slot is None:
            raise PlacedError(at, f"request {name!r} is evicted, so it cannot be {verb}", "resume it first")
        return one

    def _settled(self, name: str, at: str, verb: str) -> Held:
        one = self._resident(name, at, verb)
        if one.drafts:
            message = f"request {name!r} has drafts that are not committed, so it cannot be {verb}"
            raise PlacedError(at, message, "commit first; a roll back decides what counts")
        if one.pending is not None:
            message = f"request {name!r} has drafts that are not settled, so it cannot be {verb}"
            raise PlacedError(at, message, "settle first, what counts or nothing")
        return one

    def _written(self, name: str, verb: str) -> Held:
        one = self._settled(name, "/request", verb)
        if not one.tokens:
            message = f"request {name!r} has no token yet, so it cannot be {verb}"
            raise PlacedError("/request", message, "prefill or decode first")
        return one

    def _known(self, name: str) -> tuple[int, int]:
        if name in self.checkpoints:
            return self.checkpoints[name]
        if name in self.dropped:
            message = f"checkpoint {name!r} was dropped in step {self.dropped[name]}"
            raise PlacedError("/checkpoint", message, "use it before, or take it again")
        hint = nearest(name, self.checkpoints) if self.checkpoints else "take it first, or `keep` it in a prefill"
        raise PlacedError("/checkpoint", f"checkpoint {name!r} was never taken", hint)

    def _checkpoint(self, name: str, slot: int, tokens: int, at: str) -> None:
        if name in self.checkpoints:
            raise PlacedError(f"{at}/checkpoint", f"there is a checkpoint {name!r} already: drop it, or choose a name")
        self._claim(slot, f"checkpoint {name!r}", f"{at}/slot")
        self.checkpoints[name] = slot, tokens

    def _claim(self, slot: int, owner: str, at: str) -> None:
        if slot >= self.slots:
            message = f"there is no slot {slot}: the pool has {self.slots}, counted from 0"
            raise PlacedError(at, message, self._free(self.owner))
        if slot in self.owner:
            raise PlacedError(at, f"slot {slot} belongs to {self.owner[slot]}", self._free(self.owner))
        self.owner[slot] = owner

    def _free(self, taken: Container[int]) -> str:
        """Which numbers a step may name, as a hint."""
        found = [str(number) for number in islice((n for n in range(self.slots) if n not in taken), MOST_NAMED + 1)]
        if not found:
            return "all are taken: raise `slots`"
        return f"free: {', '.join(found[:MOST_NAMED])}" + (", ..." if len(found) > MOST_NAMED else "")

    def _release(self, slots: Iterable[int | None]) -> None:
        for slot in slots:
            if slot is not None:
                del self.owner[slot]

    def _distinct(self, names: list[str]) -> None:
        for i, name in enumerate(names):
            if name in names[:i]:
                raise PlacedError("/rows", f"request {name!r} has two rows: a call takes each request once")

    def _add(self, name: str, taken: int, accepted: int | None = None, settled: bool = True) -> None:
        """Tokens that a request takes from its stream, and how many of them count."""
        one = self.open[name]
        one.used += taken
        self.used[name] = one.used
        one.tokens += taken if accepted is None else accepted
        if settled:
            one.settled = one.tokens

    def _place(self, row: line_model.Branch, at: str) -> None:
        if row.place >= self.slots:
            message = f"there is no place {row.place}: the buffer has {self.slots}, counted from 0"
            raise PlacedError(at, message, self._free(self.places))
        if row.place in self.places:
            message = f"place {row.place} belongs to the drafts of {self.places[row.place]!r}"
            raise PlacedError(at, message, self._free(self.places))
        self.places[row.place] = row.request

    def _unplace(self, one: Held) -> None:
        if one.pending is not None:
            del self.places[one.pending.place]
        one.pending = None
