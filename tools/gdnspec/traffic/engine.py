"""Continuous batching, replayed: which prefill, decode and verify batches a log's requests become, step by step.

The rules are those that engines share (Orca's iteration-level scheduling; chunked prefill as in Sarathi-Serve):

- A step runs every request that decodes, one row each, and prefills prompts in order of arrival with what is left of
  the step's tokens. A prompt that does not fit goes on in the next step, from the state that it has.
- Not chunked: prompts go whole, in steps of their own, and those come before any decode.
- At most `running` requests have a state at a time. The others wait.
- The last token of a prompt yields the first token of the answer, so an answer of n tokens is decoded in n - 1 rows;
  with speculation, in as many as its accepted tokens take.

Steps that are alike follow each other by the thousand where nothing is prefilled: they are one `Step`.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gdnspec.model.errors import SpecError
from gdnspec.traffic.prefix_cache import PrefixCache
from gdnspec.traffic.request import Request
from gdnspec.traffic.speculation import Speculation


@dataclass(frozen=True)
class Limits:
    """What an engine is started with. Lengths in tokens."""

    step_tokens: int = 8192  # of a step, over all of its requests
    running: int = 256  # requests that have a state
    chunked: bool = True
    drafts: int = 0  # guessed tokens in each row that decodes
    acceptance: float = 0.0  # chance that a guess is right, where those before it were
    cached_states: int = 0  # of prefixes
    block: int = 512  # between two of these
    seed: int = 0  # of what is accepted

    def __post_init__(self) -> None:
        if self.running * (self.drafts + 1) > self.step_tokens:
            rows = f"{self.running} requests of {self.drafts + 1} tokens each"
            raise SpecError(
                f"a step of {self.step_tokens} tokens is too small for {rows}: raise one or lower the other"
            )


class Step(NamedTuple):
    """`times` steps that are alike, `duration` ns each, the first at `start`. `lengths` of the sequences that are
    prefilled, `carried` of them from a state; `rows` decode, or verify where the engine speculates."""

    start: int
    duration: int
    times: int
    lengths: tuple[int, ...]
    carried: tuple[bool, ...]
    rows: int


class StepTime(Protocol):
    """Nanoseconds of a step."""

    def __call__(self, lengths: tuple[int, ...], rows: int) -> int: ...


@dataclass
class Totals:
    """What has been scheduled so far."""

    requests: int = 0
    prompts: int = 0  # tokens of all prompts
    cached: int = 0  # of these, found in the cache
    prefilled: int = 0  # of these, computed
    outputs: int = 0  # tokens of all answers
    first: int = 0  # of these, by a prefill
    rows: int = 0  # decoded or verified
    steps: int = 0
    busy: int = 0  # ns
    latest: int = 0  # ns, end of the last step
    waiting: int = 0  # requests, at most at one time


@dataclass
class _Sequence:
    """A prompt on its way."""

    request: Request
    left: int  # tokens still to be computed
    carried: bool  # whether it starts from a state


@dataclass
class Engine:
    """One replay. `totals` is what `run` has yielded."""

    limits: Limits
    step_time: StepTime
    totals: Totals = field(default_factory=Totals)

    def run(self, requests: Iterable[Request]) -> Iterator[Step]:
        """Steps in order, until every request has its answer."""
        limits, totals = self.limits, self.totals
        cache = PrefixCache(limits.cached_states, limits.block)
        speculation = Speculation(limits.drafts, limits.acceptance, limits.seed)
        arriving = iter(requests)
        coming = next(arriving, None)
        waiting: deque[Request] = deque()
        prefilling: deque[_Sequence] = deque()
        ends: list[int] = []  # of what decodes: the step of decoding after which it has all of its tokens
        clock = decoded = 0

        while True:
            while coming is not None and coming.arrival <= clock:
                waiting.append(coming)
                coming = next(arriving, None)
            totals.waiting = max(totals.waiting, len(waiting))
            if not (waiting or prefilling or ends):
                if coming is None:
                    return
                clock = coming.arrival
                continue

            chosen = self._choose(waiting, prefilling, len(ends), cache)
            rows = len(ends) if limits.chunked or not chosen else 0
            lengths = tuple(length for _, length in chosen)
            duration = self.step_time(lengths, rows)
            times = 1
            if not chosen:
                # Nothing changes until an answer is complete, or a request comes that there is room for.
                times = ends[0] - decoded
                if coming is not None and len(ends) < limits.running:
                    times = max(1, min(times, -(-(coming.arrival - clock) // duration)))
            yield Step(clock, duration, times, lengths, tuple(x.carried for x, _ in chosen), rows)

            clock += times * duration
            totals.steps += times
            totals.busy += times * duration
            totals.latest = clock
            totals.rows += times * rows
            if rows:
                decoded += times
                while ends and ends[0] <= decoded:
                    heapq.heappop(ends)
            for sequence, length in chosen:
                self._computed(sequence, length)
                if not sequence.left:
                    request = sequence.request
                    cache.keep(request.blocks, request.prompt)
                    steps = speculation.steps(totals.requests, request.output - 1)
                    self._answered(request)
                    if steps:
                        heapq.heappush(ends, decoded + steps)
            while prefilling and not prefilling[0].left:
                prefilling.popleft()

    def _choose(
        self, waiting: deque[Request], prefilling: deque[_Sequence], decoding: int, cache: PrefixCache
    ) -> list[tuple[_Sequence, int]]:
        """The sequences that this step prefills, and how many tokens of each. New ones join `prefilling`."""
        limits = self.limits
        left = limits.step_tokens - (decoding * (limits.drafts + 1) if limits.chunked else 0)
        chosen: list[tuple[_Sequence, int]] = []
        for sequence in prefilling:
            length = min(sequence.left, left)
            if not length:
                return chosen
            chosen.append((sequence, length))
            left -= length
        while waiting and left and len(prefilling) + decoding < limits.running:
            request = waiting[0]
            found = cache.hit(request.blocks, request.prompt)
            length = request.prompt - found
            if not limits.chunked and length > left:
                if not chosen:
                    raise SpecError(
                        f"a prompt of {length} tokens does not fit a step of {limits.step_tokens}: chunk prompts, or "
                        "raise the tokens of a step"
                    )
                break
            waiting.popleft()
            sequence = _Sequence(request, length, found > 0)
            self.totals.cached += found
            prefilling.append(sequence)
            length = min(length, left)
            chosen.append((sequence, length))
            left -= length
        return chosen

    def _computed(self, sequence: _Sequence, length: int) -> None:
        sequence.left -= length
        sequence.carried = True
        self.totals.prefilled += length

    def _answered(self, request: Request) -> None:
        self.totals.requests += 1
        self.totals.prompts += request.prompt
        self.totals.outputs += request.output
        self.totals.first += min(request.output, 1)
