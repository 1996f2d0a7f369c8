"""Draws sessions from a seed: a walk over steps that the ledger allows, until every request has finished."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from gdnspec.inputs.random import Stream
from gdnspec.model.accounts import Held
from gdnspec.model.errors import PlacedError
from gdnspec.model.ledger import Ledger
from gdnspec.model.session_line import SessionLine, States, Step

STEPS = 24  # before the requests are finished
OPEN = 4  # requests at a time
LONGEST = 90  # tokens of a piece
WEIGHTS = {
    "admit": 5, "prefill": 6, "decode": 6, "verify": 5, "commit": 3, "roll_back": 2, "take": 2, "restore": 4, "fork": 2,
    "move": 2, "evict": 2, "resume": 3, "drop": 1, "finish": 2, "draft": 6, "settle": 6,
}  # fmt: skip
OF_SLOTS, OF_BUFFER = ("verify", "commit", "roll_back"), ("draft", "settle")  # two ways to have drafts
DRAFTS = 4  # tokens of a row in the buffer of steps
Branches = Literal["no", "may", "must"]  # whether drafts are trees: one of them at least, where they must
STEP: TypeAdapter[Step] = TypeAdapter(Step)


@dataclass
class _Walk:
    """A session that grows. Each method of a step proposes one; None if there is nothing to do it with."""

    stream: Stream
    ledger: Ledger
    interval: int
    branches: Branches
    steps: list[dict[str, Any]] = field(default_factory=list)
    names: int = 0

    def below(self, count: int) -> int:
        """A uniform number in 0 .. count - 1."""
        return int(self.stream.raw(1)[0] % np.uint64(count))

    def pick(self, items: list[Any]) -> Any:
        return items[self.below(len(items))] if items else None

    def slot(self) -> int | None:
        free = [slot for slot in range(self.ledger.slots) if slot not in self.ledger.owner]
        found: int | None = self.pick(free)
        return found

    def some(self, **wanted: bool) -> list[tuple[str, Held]]:
        """Open requests: resident or not, with drafts or not, with tokens or not."""
        return [
            (name, one)
            for name, one in self.ledger.open.items()
            if (one.slot is not None) == wanted.get("resident", True)
            and wanted.get("drafts", bool(one.drafts)) == bool(one.drafts)
            and wanted.get("tokens", one.tokens > 0) == (one.tokens > 0)
        ]

    def one(self, **wanted: bool) -> str | None:
        found: str | None = self.pick([name for name, _ in self.some(**wanted)])
        return found

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def add(self, step: dict[str, Any] | None) -> None:
        """Takes a proposed step if it is possible."""
        if step is None or any(value is None for value in step.values()):
            return
        after = copy.deepcopy(self.ledger)  # a step that is refused may have been half taken
        try:
            after.take(STEP.validate_python(step))
        except PlacedError:
            return
        self.ledger = after
        self.steps.append(step)

    # --- proposals ----------------------------------------------------------------------------------------------

    def admit(self) -> dict[str, Any] | None:
        if len(self.ledger.open) >= OPEN:
            return None
        return {"do": "admit", "request": self.fresh("r"), "slot": self.slot()}

    def prefill(self) -> dict[str, Any] | None:
        names = [name for name, _ in self.some(drafts=False)]
        rows: list[dict[str, Any] | None] = []
        keeps = False
        for name in names[: 1 + self.below(3)]:
            tokens = 1 + self.below(LONGEST)
            row: dict[str, Any] = {"request": name, "tokens": tokens}
            slot, seen = self.slot(), self.ledger.open[name].tokens
            edge = self.interval - seen % self.interval if self.ledger.pooled else self.interval
            if tokens >= edge and slot is not None and not keeps:
                row["keep"] = [{"at": seen + edge, "checkpoint": self.fresh("c"), "slot": slot}]
                keeps = True
            rows.append(row)
        if self.ledger.pooled and not keeps and rows:
            return {"do": "prefill", "rows": [*[None] * self.below(2), *rows], "behind": self.below(3)}
        return {"do": "prefill", "rows": rows} if rows else None

    def decode(self) -> dict[str, Any] | None:
        rows: list[dict[str, Any] | None] = [{"request": name} for name, _ in self.some() if self.below(4)]
        rows += [None] * self.below(3)
        return {"do": "decode", "rows": rows} if rows else None

    def verify(self) -> dict[str, Any] | None:
        name = self.one()
        if name is None:
            return None
        one = self.ledger.open[name]
        free = [slot for slot in range(self.ledger.slots) if slot not in self.ledger.owner]
        drafts = len(one.drafts) or 1 + self.below(4)
        slots = one.drafts or free[:drafts]
        row = {"request": name, "slots": list(slots), "accept": self.below(drafts + 1)}
        rows = [row, None] if self.below(2) else [row]
        return {"do": "verify", "drafts": drafts, "rows": rows} if len(slots) == drafts else None

    def commit(self) -> dict[str, Any] | None:
        return {"do": "commit", "request": self.one(drafts=True)}

    def roll_back(self) -> dict[str, Any] | None:
        name = self.one(drafts=True)
        accepted = self.ledger.open[name].accepted if name is not None else 0
        return {"do": "roll_back", "request": name, "accept": self.below(accepted + 1)}

    def draft(self) -> dict[str, Any] | None:
        places = [place for place in range(self.ledger.slots) if place not in self.ledger.places]
        rows: list[dict[str, Any] | None] = []
        for name, _ in self.some(drafts=False):
            if self.below(2) and places:
                place = places.pop(self.below(len(places)))
                row: dict[str, Any] = {"request": name, "place": place, "tokens": self.below(DRAFTS + 1)}
                if self.branches != "no" and (self.lacks_a_tree() or self.below(2)):
                    row["parents"] = [self.below(t + 1) - 1 for t in range(row["tokens"])]
                rows.append(row)
        return {"do": "draft", "drafts": DRAFTS, "rows": rows + [None] * self.below(2)} if rows else None

    def lacks_a_tree(self) -> bool:
        """Whether no drafts branch so far, and some must."""
        rows = (row for step in self.steps if step["do"] == "draft" for row in step["rows"])
        return self.branches == "must" and not any("parents" in (row or {}) for row in rows)

    def settle(self) -> dict[str, Any] | None:
        rows: list[dict[str, Any] | None] = [None] * self.below(2)
        for name, one in self.ledger.open.items():
            if one.pending is not None and self.below(3):
                least = int(self.ledger.wide and one.pending.tokens > 0)
                accept = least + self.below(one.pending.tokens - least + 1)
                rows.append({"request": name, "accept": accept})
        return {"do": "settle", "rows": rows} if any(rows) else None

    def take(self) -> dict[str, Any] | None:
        name = self.one(drafts=False, tokens=True)
        return {"do": "take", "request": name, "checkpoint": self.fresh("c"), "slot": self.slot()}

    def restore(self) -> dict[str, Any] | None:
        checkpoint = self.pick(sorted(self.ledger.checkpoints))
        return {"do": "restore", "request": self.one(drafts=False, tokens=False), "checkpoint": checkpoint}

    def fork(self) -> dict[str, Any] | None:
        if len(self.ledger.open) >= OPEN:
            return None
        name = self.one(drafts=False, tokens=True)
        return {"do": "fork", "request": name, "new": self.fresh("r"), "slot": self.slot()}

    def move(self) -> dict[str, Any] | None:
        return {"do": "move", "request": self.one(drafts=False), "slot": self.slot()}

    def evict(self) -> dict[str, Any] | None:
        return {"do": "evict", "request": self.one(drafts=False)}

    def resume(self) -> dict[str, Any] | None:
        name = self.one(resident=False)
        again = name is not None and self.ledger.open[name].tokens > 0 and self.below(3) == 0
        return {"do": "resume", "request": name, "slot": self.slot()} | ({"recompute": True} if again else {})

    def drop(self) -> dict[str, Any] | None:
        return {"do": "drop", "checkpoint": self.pick(sorted(self.ledger.checkpoints))}

    def finish(self) -> dict[str, Any] | None:
        return {"do": "finish", "request": self.pick(sorted(self.ledger.open))}


def draw(
    name: str, preset: str, regime: str, seed: int, states: States = "float32", convolution: bool = False,
    slots: int = 16, interval: int = 64, pooled: bool = False,
) -> SessionLine:  # fmt: skip
    """One session. The same arguments give the same session on every machine."""
    both = convolution and bool(Stream(seed, "trees").raw(1)[0] & np.uint64(1))
    ledger = Ledger(slots, states, interval, pooled, convolution and not both)
    branches: Branches = "must" if both else "no" if convolution else "may"
    walk = _Walk(Stream(seed, "session"), ledger, interval, branches)
    without = OF_SLOTS if pooled else OF_BUFFER if states == "float32" else OF_SLOTS + OF_BUFFER
    kinds = [do for do in WEIGHTS if do not in without]
    bag = [do for do in kinds for _ in range(WEIGHTS[do])]
    while len(walk.steps) < STEPS or not any(walk.ledger.used.values()):
        walk.add(getattr(walk, walk.pick(bag))())
    for request in sorted(walk.ledger.open):
        walk.add({"do": "finish", "request": request})
    return SessionLine.model_validate(
        {
            "name": name, "suite": "conformance", "preset": preset, "regime": regime, "seed": seed, "states": states,
            "convolution": convolution, "pooled": pooled, "slots": slots, "interval": interval, "steps": walk.steps,
        }
    )  # fmt: skip
