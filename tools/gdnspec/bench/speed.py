"""Measures speed: windows of calls on fresh content, with every output verified and three witnesses for each figure.

A round is a window of n calls and one of 2n, for every solution in turn. Their difference divided by n is the cost of
one more call, by the child's device time and by this process's clock. Costs per window, such as a launch, cancel out.
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
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.parent.output import printable
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sandbox.wire.arena import Arena, create

WINDOW = 3e-3  # seconds of the shorter window: messages vary by 0.1 ms
LONGEST = 1e-1  # its limit in seconds, if the calls that the cache needs would take longer
MOST_CALLS = 1024  # in the shorter window
ON_A_CPU = 128  # largest number of sets of buffers
PROBED = 4  # largest number of calls from which the length of a window is estimated
OVER_L2 = 3  # a window touches this many times the size of the L2 cache
MEMORY, MOST_MEMORY = 0.4, 48 << 30  # a share of free memory, and a limit in bytes, for all rings together
ROUNDS = (20, 400)  # fewest if time allows, most
DOUBTED = 30  # fewest rounds, whatever the time, if the clocks disagree
PRECISE = 0.01  # stop when the interval of the median is narrower than this
HOST_ROUNDS = 5
UNJOINED = "unjoined work"  # part of CUDA's message for a capture that ends before a forked stream has joined


@dataclass(frozen=True)
class Graph:
    """A captured graph of `calls` calls, as the child reports it. `kernels`: of the graph. `launched`: by one call
    outside a graph. `copied`: the graph ends with copies of the outputs, because their memory cannot be shared."""

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
        """What is missing in the graph, or None."""
        if self.kernels == 0:
            return f"the captured graph of {self.calls} calls contains no kernel"
        if self.launched is not None and self.kernels < self.calls * self.launched:
            each = f"one call outside a graph launches {self.launched}"
            return f"the captured graph of {self.calls} calls contains only {self.kernels} kernels, but {each}"
        return None


@dataclass(eq=False)
class Contestant:
    """One solution in a race: its ring, its samples, and what went wrong."""

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
    verdict: Verdict | None = None  # the first failure

    def judge(self, outputs: dict[str, Tensor]) -> list[Verdict]:
        return self.case.judge(self.job.found.definition, outputs)

    @property
    def calls(self) -> int:
        """The number of calls of the shorter window."""
        return self.rounds.calls

    def suspicion(self, floor: float | None) -> str | None:
        """Why the figure is not plausible, or None."""
        if self.why_no_graph is not None and UNJOINED in self.why_no_graph:
            # If launches take longer than the work, no clock shows this.
            return (
                f"the solution leaves work on a stream that the caller's stream does not wait for: {self.why_no_graph}"
            )
        if self.rounds.method == "graph" and self.graph is not None and self.graph.incomplete:
            return self.graph.incomplete
        if doubt := self.rounds.doubt():
            return doubt
        device = self.rounds.summary.median
        if floor is not None and device < floor:
            least = f"{floor * 1e6:.2f} us that the memory and the clock allow"
            return f"{device * 1e6:.2f} us per call is less than the {least}"
        return None


class Race:
    """Times solutions in turns on one workload: A B A B. `seconds`: after which no round starts, if there were
    enough."""

    def __init__(self, contestants: list[Contestant], seconds: float, timeout: float, seed: int) -> None:
        self.contestants, self.seconds, self.timeout = contestants, seconds, timeout
        self._turn = 0
        self._on_gpu = bool(contestants) and contestants[0].job.device.kind == "cuda"
        self.generator = torch.Generator("cuda" if self._on_gpu else "cpu").manual_seed(seed)

    def run(self, told: Callable[[int, float], None] = lambda rounds, spread: None) -> None:
        """Fills in every contestant. Raises `MemoryError` if there is no room for two sets of buffers."""
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
        """Makes and judges a base call, creates a ring whose length depends on time and memory, and runs an untimed
        window of each length."""
        content = contestant.case.content(contestant.job.device.kind)
        contestant.child.load(contestant.job.entry.model_dump())
        with Session(contestant.job, content, contestant.job.device.kind, contestant.child, self.timeout) as session:
            session.call()  # compiles and tunes
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
            probe.fill(self.generator, probe.count)  # `prepare` needs valid inputs
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
        """Chooses the method: graphs of both lengths if they can be captured. Needs an eager window before."""
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
        """The approximate time of a call by its method (an eager call may be far slower), from a few additional calls.
        None if an output was wrong."""
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
        """How many sets of buffers fit into memory; at least two. Raises `MemoryError`."""
        if not self._on_gpu:
            return ON_A_CPU
        reserved = contestant.reserve.nbytes if contestant.reserve is not None else 0
        room = self._fitting(contestant, content, reserved)
        if room < 2:
            free, _ = torch.cuda.mem_get_info()
            room = self._fitting(contestant, content, int(MEMORY * free / len(self.contestants)))
        if room < 2:
            need = self._nbytes(contestant, content, 2) * len(self.contestants) / MEMORY
            raise MemoryError(f"timing needs {need / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free")
        return room

    def _fitting(self, contestant: Contestant, content: Content, nbytes: int) -> int:
        """How many sets of buffers fit into `nbytes`, up to the largest useful number."""
        most = max(2, min(2 * MOST_CALLS, most_calls(contestant.job.found.definition, content) or 2 * MOST_CALLS))
        return bisect_right(range(1, most + 1), nbytes, key=lambda n: self._nbytes(contestant, content, n))

    def _nbytes(self, contestant: Contestant, content: Content, count: int) -> int:
        return Layout(contestant.job.found.definition, contestant.job.workload.gaps, content, count).nbytes

    def _calls(self, seconds: float, touched: int, room: int) -> int:
        """The number of calls of the shorter window: long enough, beyond the cache, within memory twice."""
        seconds = max(seconds, 1e-7)  # noise may leave no positive time
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
        """Times eager calls until they return (launches, planning, allocation), as the child reports it."""
        for _ in range(HOST_ROUNDS):
            found = self._window(contestant, contestant.calls, "eager", host=True)
            if found is None:
                return
            contestant.host.append(found[1] / contestant.calls)

    def _window(self, contestant: Contestant, calls: int, method: str, host: bool = False) -> Window | None:
        """The seconds of a window, after every output was verified; None if one is or was wrong, with the reason in
        `contestant.verdict`."""
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
        )  # a missing time makes the clocks disagree


def reserves(count: int) -> list[Arena]:
    """Allocates memory for `count` rings before anything else. Decode took 1.7 times as long on rings of 10 GiB that
    were allocated late, probably because scattered pages miss the GPU's translation cache."""
    free, _ = torch.cuda.mem_get_info()
    each = int(min(MEMORY * free, MOST_MEMORY)) // count // (1 << 21) << 21
    return [create("cuda", each) for _ in range(count)] if each else []  # on a full GPU, each workload reports it
