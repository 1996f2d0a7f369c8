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

from gdnspec.compare.judge import Verdict, judge_all
from gdnspec.protocol.arena import Arena, create
from gdnspec.runner.call import Content, Session, number
from gdnspec.runner.check import Case
from gdnspec.runner.child import Child, ChildFailed
from gdnspec.runner.output import printable
from gdnspec.runner.plan import Job
from gdnspec.runner.returned import NoSuchMemory
from gdnspec.runner.ring import Ring
from gdnspec.runner.ring_layout import Layout, most_calls
from gdnspec.timing.cache import empty_cache, l2_bytes
from gdnspec.timing.rounds import AT_LEAST, Rounds, Window

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
class Racer:
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

    def __init__(self, racers: list[Racer], seconds: float, timeout: float, seed: int) -> None:
        self.racers, self.seconds, self.timeout = racers, seconds, timeout
        self._turn = 0
        self._on_gpu = bool(racers) and racers[0].job.device.kind == "cuda"
        self.generator = torch.Generator("cuda" if self._on_gpu else "cpu").manual_seed(seed)

    def run(self, told: Callable[[int, float], None] = lambda rounds, spread: None) -> None:
        """Fills in every racer. Raises `MemoryError` where not even one call fits twice."""
        with ExitStack() as stack:
            for racer in self.racers:
                self._guarded(racer, self._line_up, stack)
            started = time.perf_counter()
            for rounds in range(ROUNDS[1]):
                self._turn = rounds
                alive = [racer for racer in self.racers if racer.verdict is None]
                late = time.perf_counter() - started > self.seconds
                enough = DOUBTED if any(racer.rounds and racer.rounds.doubt() for racer in alive) else AT_LEAST
                if not alive or (late and rounds >= enough) or self._settled(alive, rounds):
                    break
                for racer in alive:
                    self._guarded(racer, self._round)
                if alive[0].rounds.counted:
                    told(rounds + 1, alive[0].rounds.summary.spread)
            for racer in self.racers:
                if racer.verdict is None:
                    self._guarded(racer, self._host)
                if racer.verdict is None and racer.ring is not None:
                    racer.verdict = racer.ring.overrun()

    def _settled(self, alive: list[Racer], rounds: int) -> bool:
        return rounds >= ROUNDS[0] and all(r.rounds.counted and r.rounds.summary.spread < PRECISE for r in alive)

    def _guarded(self, racer: Racer, work: Callable[..., None], *more: object) -> None:
        try:
            work(racer, *more)
        except ChildFailed as failure:
            racer.verdict = Verdict(failure.status, failure.message)

    # --- one racer ----------------------------------------------------------------------------------------------

    def _line_up(self, racer: Racer, stack: ExitStack) -> None:
        """A base call whose outputs are judged, a ring as long as time and memory want it, and a first window of each
        length that nobody times."""
        content = Content.of(racer.case.inputs, racer.job.device.kind)
        racer.child.load(racer.job.entry.model_dump())
        with Session(racer.job, content, racer.job.device.kind, racer.child, self.timeout) as session:
            session.call()  # what is compiled or tuned at the first call
            answer = session.call()
        judged = [answer.fault] if answer.fault is not None else racer.judge(answer.outputs)
        racer.verdict = next((verdict for verdict in judged if verdict.status != "PASSED"), None)
        if racer.verdict is not None:
            return
        room = self._room(racer, content)

        def ring(count: int) -> Ring:
            return Ring(racer.job, content, answer.outputs, racer.child, count, self.timeout, racer.reserve)

        with ring(2 * min(PROBED, room // 2)) as probe:
            racer.ring = probe
            probe.fill(self.generator, probe.count)  # `prepare` is given what a call could be given
            racer.prepare = probe.open()
            seconds = self._probed(racer, probe.count // 2)
            racer.verdict = racer.verdict or probe.overrun()
        if seconds is None or racer.verdict is not None:
            return
        calls = racer.rounds.calls = self._calls(seconds, probe.layout.touched, room)
        racer.ring = stack.enter_context(ring(2 * calls))
        racer.ring.fill(self.generator, 2 * calls)
        racer.ring.open()
        self._window(racer, 2 * calls, "eager")
        self._choose(racer, calls)
        for count in (calls, 2 * calls):
            self._window(racer, count, racer.rounds.method)
        racer.timed = racer.verification = 0.0

    def _choose(self, racer: Racer, calls: int) -> None:
        """The method: a graph of each length where they can be captured. An eager window must have gone before."""
        racer.rounds.method = "events" if self._on_gpu else "cpu"
        if not self._on_gpu or racer.verdict is not None:
            return
        assert racer.ring is not None
        for count in (calls, 2 * calls):
            reply = racer.child.capture(count, self.timeout)
            if reply.get("why_not") is not None:
                racer.why_no_graph = printable(str(reply["why_not"]), 300)
                return
            try:
                racer.ring.returned(count, reply.get("returned"))
            except NoSuchMemory as error:
                raise ChildFailed("PROTOCOL_ERROR", printable(str(error), 300)) from None
            if count == calls:
                racer.graph = Graph.of(calls, reply)
        racer.rounds.method, racer.why_no_graph = "graph", None

    def _probed(self, racer: Racer, most: int) -> float | None:
        """About how long a call takes by its method, which may be far from what an eager one does: what a few more of
        them add. None where an output was wrong."""
        first = [self._window(racer, 1, "eager") for _ in range(2)][1]
        if first is None:
            return None
        calls = max(1, min(most, int(WINDOW / max(first[0], 1e-6))))
        self._choose(racer, calls)
        _, once, twice = (self._window(racer, count, racer.rounds.method) for count in (2 * calls, calls, 2 * calls))
        return (twice[1] - once[1]) / calls if once is not None and twice is not None else None

    def _room(self, racer: Racer, content: Content) -> int:
        """How many sets of buffers there is memory for: two at least. Raises `MemoryError`."""
        if not self._on_gpu:
            return ON_A_CPU
        reserved = racer.reserve.nbytes if racer.reserve is not None else 0
        room = self._fitting(racer, content, reserved)
        if room < 2:
            free, _ = torch.cuda.mem_get_info()
            room = self._fitting(racer, content, int(MEMORY * free / len(self.racers)))
        if room < 2:
            need = self._nbytes(racer, content, 2) * len(self.racers) / MEMORY
            raise MemoryError(f"timing needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")
        return room

    def _fitting(self, racer: Racer, content: Content, nbytes: int) -> int:
        """How many sets of buffers so many bytes have room for, up to what anyone wants."""
        most = max(2, min(2 * MOST_CALLS, most_calls(racer.job.found.definition, content) or 2 * MOST_CALLS))
        return bisect_right(range(1, most + 1), nbytes, key=lambda n: self._nbytes(racer, content, n))

    def _nbytes(self, racer: Racer, content: Content, count: int) -> int:
        return Layout(racer.job.found.definition, racer.job.workload.gaps, content, count).nbytes

    def _calls(self, seconds: float, touched: int, room: int) -> int:
        """How many calls the shorter window has: time enough, and over the cache; within memory for twice as many."""
        seconds = max(seconds, 1e-7)  # noise may leave nothing of it
        for_cache = min(-(-OVER_L2 * l2_bytes() // touched), LONGEST / seconds) if self._on_gpu else 1
        return max(1, int(min(room // 2, MOST_CALLS, max(for_cache, WINDOW / seconds))))

    def _round(self, racer: Racer) -> None:
        assert racer.ring is not None
        before = time.perf_counter()
        racer.ring.permute(self.generator)
        racer.verification += time.perf_counter() - before
        once = self._window(racer, racer.calls, racer.rounds.method)
        twice = self._window(racer, 2 * racer.calls, racer.rounds.method)
        if once is None or twice is None:
            return
        racer.rounds.add(self._turn, once, twice)

    def _host(self, racer: Racer) -> None:
        """An eager call until it returns: launches, planning, allocation. The child's word."""
        for _ in range(HOST_ROUNDS):
            found = self._window(racer, racer.calls, "eager", host=True)
            if found is None:
                return
            racer.host.append(found[1] / racer.calls)

    def _window(self, racer: Racer, calls: int, method: str, host: bool = False) -> Window | None:
        """Its seconds, after every output has been verified; None where one is
        wrong, or was in a window before, which `racer.verdict` then says."""
        if racer.verdict is not None:
            return None
        assert racer.ring is not None
        before = time.perf_counter()
        if self._on_gpu:
            racer.child.wake(self.timeout)
        with racer.child.stopped():
            racer.ring.fill(self.generator, calls, method == "graph")
            if self._on_gpu:
                empty_cache()
        filled = time.perf_counter()
        clock, said = racer.child.window(calls, method, self.timeout, racer.ring.look)
        done = time.perf_counter()
        racer.verdict = racer.ring.verify(racer.judge)
        if self._on_gpu:
            torch.cuda.synchronize()
        racer.child.inspect(self.timeout)
        racer.timed += clock
        racer.verification += filled - before + time.perf_counter() - done
        if racer.verdict is not None:
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
