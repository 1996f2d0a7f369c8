"""Turns the requests of a log into sessions: what a small engine with a prefix cache does to a pool of states.

Requests keep their order, prompts, answers and shared blocks. Times do not matter: a step begins when the one before it
has ended.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gdnspec.model.errors import SpecError
from gdnspec.traffic.engine import Limits
from gdnspec.traffic.request import Request
from gdnspec.traffic.speculation import Speculation

MOST_TOKENS = 1 << 15  # of a session: its truth is a loop over tokens
SPARE = 2  # slots that nobody names
Step = dict[str, Any]


def shortened(request: Request, by: int) -> Request:
    """The request with a prompt and an answer of this part of their lengths, at least one token each."""
    return request._replace(prompt=max(1, request.prompt // by), output=max(1, request.output // by))


def groups(requests: Iterable[Request], size: int) -> Iterator[list[Request]]:
    """The requests, `size` in a row."""
    group: list[Request] = []
    for request in requests:
        group.append(request)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


@dataclass
class _Running:
    name: str
    request: Request
    number: int
    slot: int
    done: int = 0  # tokens of the prompt that its state has seen
    rows: deque[int] = field(default_factory=deque)  # tokens that each coming row gives
    drafts: list[int] = field(default_factory=list)


class Served:
    """Serves one group of requests. `steps` are those of a session with `slots` slots. `pooled`: edges of blocks are
    met wherever a piece starts, and the states after drafts are set aside in a buffer, at the place with the number of
    the request's slot; else each draft has a slot."""

    def __init__(self, limits: Limits, first: int, pooled: bool = False) -> None:
        self.limits, self.first, self.pooled = limits, first, pooled
        self.each = limits.drafts + 1 if limits.drafts else 0  # tokens of a row that is verified
        of_request = 1 if pooled else 1 + self.each
        self.slots = limits.running * of_request + limits.cached_states + SPARE
        self.free = list(range(self.slots - SPARE))
        self.steps: list[Step] = []
        self.cache: OrderedDict[int, tuple[str, int]] = OrderedDict()  # block -> checkpoint and its slot
        self.kept = 0
        self._speculation = Speculation(limits.drafts, limits.acceptance, limits.seed)

    def serve(self, requests: list[Request]) -> None:
        """All steps until every request has its answer. Raises `SpecError` if that takes too many tokens."""
        total = sum(request.prompt + request.output for request in requests)
        if total > MOST_TOKENS:
            raise SpecError(f"{len(requests)} requests have {total} tokens, and a session may have {MOST_TOKENS}: use "
                            "--shorten or fewer --requests")  # fmt: skip
        waiting = deque(enumerate(requests))
        running: list[_Running] = []
        while waiting or running:
            while waiting and len(running) < self.limits.running:
                number, request = waiting.popleft()
                running.append(self._admit(number, request))
            self._prefill([one for one in running if one.done < one.request.prompt])
            decoding = [one for one in running if one.rows]
            if decoding:
                advance = self._decode if not self.each else self._draft if self.pooled else self._verify
                advance(decoding)
            for one in [one for one in running if one.done == one.request.prompt and not one.rows]:
                self._finish(one)
                running.remove(one)

    def _slot(self) -> int:
        return self.free.pop(0)

    def _release(self, *slots: int) -> None:
        self.free = sorted([*self.free, *slots])

    def _admit(self, number: int, request: Request) -> _Running:
        one = _Running(f"r{number}", request, self.first + number, self._slot())
        self.steps.append({"do": "admit", "request": one.name, "slot": one.slot})
        block, last = self.limits.block, None
        for i, name in enumerate(request.blocks[: (request.prompt - 1) // block]):
            if name not in self.cache:
                break
            last, one.done = self.cache[name][0], (i + 1) * block
            self.cache.move_to_end(name)
        if last is not None:
            self.steps.append({"do": "restore", "request": one.name, "checkpoint": last})
        return one

    def _prefill(self, chosen: list[_Running]) -> None:
        left, rows = self.limits.step_tokens, []
        new: dict[int, tuple[str, int]] = {}
        block, kept = self.limits.block, self.limits.cached_states
        for one in chosen:
            length = min(one.request.prompt - one.done, left)
            if length < one.request.prompt - one.done and length >= block:
                length -= length % block  # pieces end at edges of blocks, where states are kept
            if not length:
                break
            row: Step = {"request": one.name, "tokens": length}
            keep = []
            for at in self._edges(one.done, one.done + length):
                i = at // block - 1
                name = one.request.blocks[i] if i < len(one.request.blocks) else None
                if name is None or name in self.cache or name in new or len(new) >= kept:
                    continue
                while len(self.cache) + len(new) >= kept:
                    self._drop()
                new[name] = f"b{self.kept}", self._slot()
                self.kept += 1
                keep.append({"at": at, "checkpoint": new[name][0], "slot": new[name][1]})
            rows.append(row | ({"keep": keep} if keep else {}))
            one.done += length
            left -= length
            if one.done == one.request.prompt:
                one.rows = deque(self._speculation.yields(one.number, one.request.output - 1))
        self.cache |= new
        if rows:
            self.steps.append({"do": "prefill", "rows": rows})

    def _edges(self, start: int, stop: int) -> range:
        """Where a piece from `start` to `stop` leaves states: at edges of blocks, if the call can say so."""
        block = self.limits.block
        if start % block and not self.pooled:
            return range(0)
        return range(start - start % block + block, stop + 1, block)

    def _drop(self) -> None:
        _, (checkpoint, slot) = self.cache.popitem(last=False)
        self.steps.append({"do": "drop", "checkpoint": checkpoint})
        self._release(slot)

    def _decode(self, rows: list[_Running]) -> None:
        self.steps.append({"do": "decode", "rows": [{"request": one.name} for one in rows]})
        for one in rows:
            one.rows.popleft()

    def _verify(self, rows: list[_Running]) -> None:
        made = []
        for one in rows:
            one.drafts = one.drafts or [self._slot() for _ in range(self.each)]
            made.append({"request": one.name, "slots": one.drafts, "accept": one.rows.popleft()})
        self.steps.append({"do": "verify", "drafts": self.each, "rows": made})

    def _draft(self, rows: list[_Running]) -> None:
        made = [{"request": one.name, "place": one.slot, "tokens": self.each} for one in rows]
        counts = [{"request": one.name, "accept": one.rows.popleft()} for one in rows]
        self.steps.append({"do": "draft", "drafts": self.each, "rows": made})
        self.steps.append({"do": "settle", "rows": counts})

    def _finish(self, one: _Running) -> None:
        if one.drafts:
            self.steps.append({"do": "commit", "request": one.name})
        self.steps.append({"do": "finish", "request": one.name})
        self._release(one.slot, *one.drafts)
