"""The steps of sessions as short Python: what suites/sessions.py and suites/sessions_on_pools.py are written in."""

import zlib
from collections.abc import Sequence
from typing import Any

Step = dict[str, Any]
SMALL, WIDE = "synthetic-gva-1x2-d64", "synthetic-gva-1x2-d128"
FOUR, SIX, MHA = "synthetic-gva-2x4-d64", "synthetic-gva-2x6-d128", "synthetic-mha-2x2-d64"


def admit(**slots: int) -> list[Step]:
    """One request for each name, in its slot."""
    return [{"do": "admit", "request": name, "slot": slot} for name, slot in slots.items()]


def prefill(**tokens: int | tuple[int, list[tuple[int, str, int]]]) -> Step:
    """Tokens of each request; with checkpoints on the way, (tokens, [(at, checkpoint, slot), ..])."""
    rows = []
    for name, given in tokens.items():
        count, kept = (given, []) if isinstance(given, int) else given
        row: dict[str, Any] = {"request": name, "tokens": count}
        if kept:
            row["keep"] = [{"at": at, "checkpoint": point, "slot": slot} for at, point, slot in kept]
        rows.append(row)
    return {"do": "prefill", "rows": rows}


def decode(*names: str | None) -> Step:
    """One token of each request; None pads; `a>3` moves a to slot 3."""
    rows: list[dict[str, Any] | None] = []
    for name in names:
        if name is None:
            rows.append(None)
        else:
            request, arrow, slot = name.partition(">")
            rows.append({"request": request, "to": int(slot)} if arrow else {"request": request})
    return {"do": "decode", "rows": rows}


def verify(drafts: int, *rows: tuple[str, list[int], int] | None) -> Step:
    """(request, slots, accepted) of each row; None pads."""
    made = [None if row is None else dict(zip(("request", "slots", "accept"), row, strict=True)) for row in rows]
    return {"do": "verify", "drafts": drafts, "rows": made}


def pooled(*rows: str | None, behind: int = 0, **tokens: int | tuple[int, list[tuple[int, str, int]]]) -> Step:
    """A prefill on the pool: rows in this order, None pads; `behind` tokens follow the last sequence."""
    made = prefill(**tokens)
    known = {row["request"]: row for row in made["rows"]}
    order = [None if name is None else known.pop(name) for name in rows]
    return {"do": "prefill", "rows": [*order, *known.values()]} | ({"behind": behind} if behind else {})


def draft(drafts: int, *rows: tuple[str, int, int | list[int]] | None) -> Step:
    """(request, place, number of tokens or the parents of each) of each row; None pads."""
    made: list[dict[str, Any] | None] = []
    for row in rows:
        if row is None:
            made.append(None)
            continue
        name, place, given = row
        tree = {} if isinstance(given, int) else {"parents": given}
        count = given if isinstance(given, int) else len(given)
        made.append({"request": name, "place": place, "tokens": count} | tree)
    return {"do": "draft", "drafts": drafts, "rows": made}


def settle(*rows: str | None, **accept: int) -> Step:
    """How many tokens of each request count, or the last one of a path; None in `rows` pads, in this order."""
    left = dict(accept)
    order = [None if name is None else {"request": name, "accept": left.pop(name)} for name in rows]
    return {"do": "settle", "rows": [*order, *({"request": name, "accept": count} for name, count in left.items())]}


def take(request: str, checkpoint: str, slot: int) -> Step:
    return {"do": "take", "request": request, "checkpoint": checkpoint, "slot": slot}


def restore(request: str, checkpoint: str) -> Step:
    return {"do": "restore", "request": request, "checkpoint": checkpoint}


def fork(request: str, new: str, slot: int) -> Step:
    return {"do": "fork", "request": request, "new": new, "slot": slot}


def commit(request: str) -> Step:
    return {"do": "commit", "request": request}


def roll_back(request: str, accept: int) -> Step:
    return {"do": "roll_back", "request": request, "accept": accept}


def move(request: str, slot: int) -> Step:
    return {"do": "move", "request": request, "slot": slot}


def evict(request: str) -> Step:
    return {"do": "evict", "request": request}


def resume(request: str, slot: int, recompute: bool = False) -> Step:
    return {"do": "resume", "request": request, "slot": slot} | ({"recompute": True} if recompute else {})


def drop(checkpoint: str) -> Step:
    return {"do": "drop", "checkpoint": checkpoint}


def finish(*names: str) -> list[Step]:
    return [{"do": "finish", "request": name} for name in names]


def line(name: str, covers: str, slots: int, *steps: Step | Sequence[Step], **more: Any) -> dict[str, Any]:
    """One session. Its seed follows from its name."""
    flat: list[Step] = []
    for step in steps:
        flat += [step] if isinstance(step, dict) else step
    fixed = {"name": name, "covers": covers, "seed": zlib.crc32(name.encode()), "slots": slots, "steps": flat}
    return {"preset": SMALL, "regime": "typical", "suite": "conformance"} | fixed | more
