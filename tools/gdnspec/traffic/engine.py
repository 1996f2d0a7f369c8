"""Replay a log with continuous batching: which batches of prefill, decode and verify its requests become, per step.

The rules are common to engines (Orca's iteration-level scheduling; chunked prefill as in Sarathi-Serve):

- A step runs one row of every request that decodes. The rest of the step's tokens prefill prompts in order of arrival.
  A prompt that does not fit continues in the next step from its state.
- Without chunking, whole prompts are prefilled in steps of their own, before any decode.
- At most `running` requests have a state at a time. The others wait.
- The last token of a prompt gives the first token of the answer. An answer of n tokens is therefore decoded in n - 1
  rows; with speculation, in fewer.

While nothing is prefilled, thousands of equal steps follow each other. They become one `Step`.
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
    """The settings of an engine. Lengths in tokens."""

    step_tokens: int = 8192  # per step, over all of its requests
    running: int = 256  # requests that have a state
    chunked: bool = True
    drafts: int = 0  # draft tokens per row
    acceptance: float = 0.0  # probability that a draft token is accepted, if those before it were
    cached_states: int = 0  # in the prefix cache
    block: int = 512  # tokens between two cached states
    seed: int = 0  # decides which draft tokens are accepted

    def __post_init__(self) -> None:
        if self.running * (self.drafts + 1) > self.step_tokens:
            rows = f"{self.running} requests of {self.drafts + 1} tokens each"
            raise SpecError(
                f"a step of {self.step_tokens} tokens is too small for {rows}: raise --step-tokens or lower --running"
            )


class Step(NamedTuple):
    """`times` equal steps of `duration` ns each; the first begins at `start`. `lengths`: of the prefilled sequences.
    `carried`: which of them start from a state. `rows`: how many decode, or verify if the engine speculates."""

    start: int
    duration: int
    times: int
    lengths: tuple[int, ...]
    carried: tuple[bool, ...]
    rows: int


class StepTime(Protocol):
    """Returns the time of a step in nanoseconds."""

    def __call__(self, lengths: tuple[int, ...], rows: int) -> int: ...


@dataclass
class Totals:
    """Counts of what has been scheduled so far."""

    requests: int = 0
    prompts: int = 0  # tokens of all prompts
    cached: int = 0  # tokens of prompts that were found in the cache
    prefilled: int = 0  # tokens of prompts that were computed
    outputs: int = 0  # tokens of all answers
    first: int = 0  # tokens of answers that a prefill gave
    rows: int = 0  # decoded or verified
    steps: int = 0
    busy: int = 0  # ns
    latest: int = 0  # ns, end of the last step
    waiting: int = 0  # the most requests that waited at one time


@dataclass
class _Sequence:
    """A prompt that is being prefilled."""

    request: Request
    left: int  # tokens still to be computed
    carried: bool  # whether it starts from a state


@dataclass
class Engine:
    """One replay. `totals` counts the steps that `run` has yielded."""

    limits: Limits
    step_time: StepTime
    totals: Totals = field(default_factory=Totals)

    def run(self, requests: Iterable[Request]) -> Iterator[Step]:
        """Yields steps in order, until every request has its answer. Raises `SpecError` if a prompt does not fit."""
        limits, totals = self.limits, self.totals
        cache = PrefixCache(limits.cached_states, limits.block)
        speculation = Speculation(limits.drafts, limits.acceptance, limits.seed)
        arriving = iter(requests)
        coming = next(arriving, None)
        waiting: deque[Request] = deque()
        prefilling: deque[_Sequence] = deque()
        ends: list[int] = []  # for each decoding request, the decode step after which its answer is complete
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
                # Nothing changes until an answer is complete, or until a request arrives that may run.
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
                        f"a prompt of {length} tokens does not fit into a step of {limits.step_tokens}: use --chunked, "
                        "or raise --step-tokens"
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
