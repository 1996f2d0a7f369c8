"""Speed, by DESIGN section 7: windows of calls on fresh content, each output verified, three witnesses for each figure.

A round is a window of n calls and one of 2n, of every solution in turn: what one more call costs is the difference over
n, by the child's device time and by this process's clock. What a window costs once, a launch or a message, drops out.
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gdnspec.bench.l2_cache import empty_cache, l2_bytes
from gdnspec.bench.returned import NoSuchMemory
from gdnspec.bench.ring import Ring
from gdnspec.bench.ring_layout import Layout, most_calls
from gdnspec.bench.rounds import AT_LEAST, Rounds, Window
from gdnspec.check.call import Content, Session, number
from gdnspec.check.plan import Job
from gdnspec.check.run import Case
from gdnspec.numerics.judge import Verdict, judge_all
from gdnspec.sandbox.parent.output import printable
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sandbox.wire.arena import Arena, create

WINDOW = 3e-3  # seconds of the shorter window: messages come and go within 0.1 ms of one another
LONGEST = 1e-1  # seconds of it, where so many calls as the cache asks for would take longer
MOST_CALLS = 1024  # in it
ON_A_CPU = 128  # sets of buffers, at most
PROBED = 4  # more calls, at most, from whose time its length is estimated
OVER_L2 = 3  # a window touches so many times the L2 cache
MEMORY, MOST_MEMORY = 0.4, 48 << 30  # of what is free, and in bytes, for all rings together
ROUNDS = (20, 400)  # least where time allows, most
DOUBTED = 30  # rounds, whatever the time is, of one whose clocks do not agree
PRECISE = 0.01  # stop when the interval of the median is narrower
HOST_ROUNDS = 5
UNJOINED = "unjoined work"  # in what CUDA says of a capture that ends before a stream which it forked to has come back


@dataclass(frozen=True)
class Graph:
    """A captured graph of `calls` calls, by the child's word: its kernels, and those that one call launches outside of
    a graph. `copied`: it ends with copies of what the calls return, since that memory cannot be shared."""

    calls: int
    kernels: int
    launched: int | None
    copied: bool

    @staticmethod
    def of(calls: int, reply: dict[str, Any]) -> "Graph":
        kernels, launched = reply.get("kernels"), reply.get("launched")
        return Graph(
            calls,
            kernels if type(kernels) is int else 0,
            launched if type(launched) is int else None,
            reply.get("copied") is True,
        )

    @property
    def incomplete(self) -> str | None:
        """What is missing in it, None where nothing is."""
        if self.kernels == 0:
            return f"the captured graph of {self.calls} calls holds no kernel"
        if self.launched is not None and self.kernels < self.calls * self.launched:
            each = f"one call outside of a graph launches {self.launched}"
            return f"the captured graph of {self.calls} calls holds {self.kernels} kernels, and {each}"
        return None


@dataclass(eq=False)
class Contestant:
    """One solution of a race: its ring, its samples, and what went wrong."""

    job: Job
    case: Case
    child: Child
    reserve: Arena | None = None
    ring: Ring | None = None
    rounds: Rounds = field(default_factory=Rounds)
    why_no_graph: str | None = None
    graph: Graph | None = None  # of the shorter window
    prepare: float | None = None
    host: list[float] = field(default_factory=list)
    timed: float = 0.0
    verification: float = 0.0
    verdict: Verdict | None = None  # of what failed

    def judge(self, outputs: dict[str, Tensor]) -> list[Verdict]:
        definition = self.job.found.definition
        return judge_all(outputs, self.case.expected, definition, self.case.workload, self.case.inputs.scope)

    @property
    def calls(self) -> int:
        """Of the shorter window."""
        return self.rounds.calls

    def suspicion(self, floor: float | None) -> str | None:
        """Why the figure is not believed, None where it is."""
        if self.why_no_graph is not None and UNJOINED in self.why_no_graph:
            # Where launches take longer than the work, no clock shows it.
            return f"work is left on a stream that the caller's does not wait for: {self.why_no_graph}"
        if self.rounds.method == "graph" and self.graph is not None and self.graph.incomplete:
            return self.graph.incomplete
        if doubt := self.rounds.doubt():
            return doubt
        device = self.rounds.summary.median
        if floor is not None and device < floor:
            return f"{device * 1e6:.2f} us a call is below {floor * 1e6:.2f} us, which the memory and the clock allow"
        return None


class Race:
    """Solutions timed in turns on one workload: A B A B. `seconds`: after which no further round
    starts, if there were enough."""

    def __init__(self, contestants: list[Contestant], seconds: float, timeout: float, seed: int) -> None:
        self.contestants, self.seconds, self.timeout = contestants, seconds, timeout
        self._turn = 0
        self._on_gpu = bool(contestants) and contestants[0].job.device.kind == "cuda"
        self.generator = torch.Generator("cuda" if self._on_gpu else "cpu").manual_seed(seed)

    def run(self, told: Callable[[int, float], None] = lambda rounds, spread: None) -> None:
        """Fills in every contestant. Raises `MemoryError` where not even one call fits twice."""
        with ExitStack() as stack:
            for contestant in self.contestants:
                self._guarded(contestant, self._line_up, stack)
            started = time.perf_counter()
            for rounds in range(ROUNDS[1]):
                self._turn = rounds
                alive = [contestant for contestant in self.contestants if contestant.verdict is None]
                late = time.perf_counter() - started > self.seconds
                enough = (
                    DOUBTED
                    if any(contestant.rounds and contestant.rounds.doubt() for contestant in alive)
                    else AT_LEAST
                )
                if not alive or (late and rounds >= enough) or self._settled(alive, rounds):
                    break
                for contestant in alive:
                    self._guarded(contestant, self._round)
                if alive[0].rounds.counted:
                    told(rounds + 1, alive[0].rounds.summary.spread)
            for contestant in self.contestants:
                if contestant.verdict is None:
                    self._guarded(contestant, self._host)
                if contestant.verdict is None and contestant.ring is not None:
                    contestant.verdict = contestant.ring.overrun()

    def _settled(self, alive: list[Contestant], rounds: int) -> bool:
        return rounds >= ROUNDS[0] and all(r.rounds.counted and r.rounds.summary.spread < PRECISE for r in alive)

    def _guarded(self, contestant: Contestant, work: Callable[..., None], *more: object) -> None:
        try:
            work(contestant, *more)
        except ChildFailed as failure:
            contestant.verdict = Verdict(failure.status, failure.message)

    # --- one contestant ----------------------------------------------------------------------------------------------

    def _line_up(self, contestant: Contestant, stack: ExitStack) -> None:
        """A base call whose outputs are judged, a ring as long as time and memory want it, and a first window of each
        length that nobody times."""
        content = Content.of(contestant.case.inputs, contestant.job.device.kind)
        contestant.child.load(contestant.job.entry.model_dump())
        with Session(contestant.job, content, contestant.job.device.kind, contestant.child, self.timeout) as session:
            session.call()  # what is compiled or tuned at the first call
            answer = session.call()
        judged = [answer.fault] if answer.fault is not None else contestant.judge(answer.outputs)
        contestant.verdict = next((verdict for verdict in judged if verdict.status != "PASSED"), None)
        if contestant.verdict is not None:
            return
        room = self._room(contestant, content)

        def ring(count: int) -> Ring:
            return Ring(
                contestant.job, content, answer.outputs, contestant.child, count, self.timeout, contestant.reserve
            )

        with ring(2 * min(PROBED, room // 2)) as probe:
            contestant.ring = probe
            probe.fill(self.generator, probe.count)  # `prepare` is given what a call could be given
            contestant.prepare = probe.open()
            seconds = self._probed(contestant, probe.count // 2)
            contestant.verdict = contestant.verdict or probe.overrun()
        if seconds is None or contestant.verdict is not None:
            return
        calls = contestant.rounds.calls = self._calls(seconds, probe.layout.touched, room)
        contestant.ring = stack.enter_context(ring(2 * calls))
        contestant.ring.fill(self.generator, 2 * calls)
        contestant.ring.open()
        self._window(contestant, 2 * calls, "eager")
        self._choose(contestant, calls)
        for count in (calls, 2 * calls):
            self._window(contestant, count, contestant.rounds.method)
        contestant.timed = contestant.verification = 0.0

    def _choose(self, contestant: Contestant, calls: int) -> None:
        """The method: a graph of each length where they can be captured. An eager window must have gone before."""
        contestant.rounds.method = "events" if self._on_gpu else "cpu"
        if not self._on_gpu or contestant.verdict is not None:
            return
        assert contestant.ring is not None
        for count in (calls, 2 * calls):
            reply = contestant.child.capture(count, self.timeout)
            if reply.get("why_not") is not None:
                contestant.why_no_graph = printable(str(reply["why_not"]), 300)
                return
            try:
                contestant.ring.returned(count, reply.get("returned"))
            except NoSuchMemory as error:
                raise ChildFailed("PROTOCOL_ERROR", printable(str(error), 300)) from None
            if count == calls:
                contestant.graph = Graph.of(calls, reply)
        contestant.rounds.method, contestant.why_no_graph = "graph", None

    def _probed(self, contestant: Contestant, most: int) -> float | None:
        """About how long a call takes by its method, which may be far from what an eager one does: what a few more of
        them add. None where an output was wrong."""
        first = [self._window(contestant, 1, "eager") for _ in range(2)][1]
        if first is None:
            return None
        calls = max(1, min(most, int(WINDOW / max(first[0], 1e-6))))
        self._choose(contestant, calls)
        _, once, twice = (
            self._window(contestant, count, contestant.rounds.method) for count in (2 * calls, calls, 2 * calls)
        )
        return (twice[1] - once[1]) / calls if once is not None and twice is not None else None

    def _room(self, contestant: Contestant, content: Content) -> int:
        """How many sets of buffers there is memory for: two at least. Raises `MemoryError`."""
        if not self._on_gpu:
            return ON_A_CPU
        reserved = contestant.reserve.nbytes if contestant.reserve is not None else 0
        room = self._fitting(contestant, content, reserved)
        if room < 2:
            free, _ = torch.cuda.mem_get_info()
            room = self._fitting(contestant, content, int(MEMORY * free / len(self.contestants)))
        if room < 2:
            need = self._nbytes(contestant, content, 2) * len(self.contestants) / MEMORY
            raise MemoryError(f"timing needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
        return room

    def _fitting(self, contestant: Contestant, content: Content, nbytes: int) -> int:
        """How many sets of buffers so many bytes have room for, up to what anyone wants."""
        most = max(2, min(2 * MOST_CALLS, most_calls(contestant.job.found.definition, content) or 2 * MOST_CALLS))
        return bisect_right(range(1, most + 1), nbytes, key=lambda n: self._nbytes(contestant, content, n))

    def _nbytes(self, contestant: Contestant, content: Content, count: int) -> int:
        return Layout(contestant.job.found.definition, contestant.job.workload.gaps, content, count).nbytes

    def _calls(self, seconds: float, touched: int, room: int) -> int:
        """How many calls the shorter window has: time enough, and over the cache; within memory for twice as many."""
        seconds = max(seconds, 1e-7)  # noise may leave nothing of it
        for_cache = min(-(-OVER_L2 * l2_bytes() // touched), LONGEST / seconds) if self._on_gpu else 1
        return max(1, int(min(room // 2, MOST_CALLS, max(for_cache, WINDOW / seconds))))

    def _round(self, contestant: Contestant) -> None:
        assert contestant.ring is not None
        before = time.perf_counter()
        contestant.ring.permute(self.generator)
        contestant.verification += time.perf_counter() - before
        once = self._window(contestant, contestant.calls, contestant.rounds.method)
        twice = self._window(contestant, 2 * contestant.calls, contestant.rounds.method)
        if once is None or twice is None:
            return
        contestant.rounds.add(self._turn, once, twice)

    def _host(self, contestant: Contestant) -> None:
        """An eager call until it returns: launches, planning, allocation. The child's word."""
        for _ in range(HOST_ROUNDS):
            found = self._window(contestant, contestant.calls, "eager", host=True)
            if found is None:
                return
            contestant.host.append(found[1] / contestant.calls)

    def _window(self, contestant: Contestant, calls: int, method: str, host: bool = False) -> Window | None:
        """Its seconds, after every output has been verified; None where one is
        wrong, or was in a window before, which `contestant.verdict` then says."""
        if contestant.verdict is not None:
            return None
        assert contestant.ring is not None
        before = time.perf_counter()
        if self._on_gpu:
            contestant.child.wake(self.timeout)
        with contestant.child.stopped():
            contestant.ring.fill(self.generator, calls, method == "graph")
            if self._on_gpu:
                empty_cache()
        filled = time.perf_counter()
        clock, said = contestant.child.window(calls, method, self.timeout, contestant.ring.look)
        done = time.perf_counter()
        contestant.verdict = contestant.ring.verify(contestant.judge)
        if self._on_gpu:
            torch.cuda.synchronize()
        contestant.child.inspect(self.timeout)
        contestant.timed += clock
        contestant.verification += filled - before + time.perf_counter() - done
        if contestant.verdict is not None:
            return None
        return Window(
            clock, number(said.get("host" if host else "device")) or 0.0
        )  # what is no time makes the clocks disagree


def reserves(count: int) -> list[Arena]:
    """Memory for `count` rings, taken before anything else is: decode took 1.7 times as long on rings of 10 GiB that
    were allocated after much else, it seems because scattered pages miss the GPU's translation cache."""
    free, _ = torch.cuda.mem_get_info()
    each = int(min(MEMORY * free, MOST_MEMORY)) // count // (1 << 21) << 21
    return [create("cuda", each) for _ in range(count)] if each else []  # on a full GPU each workload says so itself
