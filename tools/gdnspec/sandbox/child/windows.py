"""The child's side of timing: many calls in a row, each on its own buffers, replayed as a graph or eager.

Its own time is the first of three witnesses. The parent's clock over the same window is the second, and a floor derived
from the definition is the third. When it answers, the parent can see the outputs: the window includes copying what
calls return, or, for a graph, they are in memory that the parent has already opened.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from gdnspec.sandbox.child.exported import export, returning
from gdnspec.sandbox.child.launches import kernels_of, launched
from gdnspec.sandbox.child.opened import Opened
from gdnspec.sandbox.wire.arena import Arena, Slot

Returned = list[list[torch.Tensor]]  # by call, by output; empty if calls write to outputs


class Windows:
    """A ring of buffers of one workload, `stride` bytes apart, and the function to call on each."""

    def __init__(self, message: dict[str, Any], arena: Arena, load: Callable[[str], Callable[..., Any]]) -> None:
        assert arena.block is not None
        self.arena = arena
        base = {name: Slot.from_json(slot) for name, slot in message["slots"].items()}
        shared = {name: base.pop(name) for name in message["shared"]}
        self.ring = [
            Opened(
                message, {name: slot.moved(i * message["stride"]) for name, slot in base.items()} | shared, arena, load
            )
            for i in range(message["count"])
        ]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._kept: dict[int, Returned] = {}  # outputs of a graph's calls, which the parent reads
        self._launched: list[int | None] = []

    def prepare(self, wait: Callable[[], None]) -> float | None:
        """Prepares every buffer. Returns the seconds of the first."""
        seconds = [opened.prepare(wait) for opened in self.ring]
        return seconds[0]

    def capture(self, calls: int) -> dict[str, Any]:
        """Captures `calls` calls as a graph. Raises if the solution cannot be captured.

        `kernels`: their number in the graph. `launched`: their number in one call outside a graph, None if unknown.
        `returned`: the places of the outputs, None if they are in the parent's memory.
        """
        if not self._launched:
            self._launched.append(launched(self.ring[0].invoke))
        graph, returned = self._captured(calls, copied=False)
        exported = export(self.arena, self.ring, returned) if returning(self.ring[0]) else None
        copied = exported is None and returning(self.ring[0])
        if copied:
            graph, returned = self._captured(calls, copied=True)
        self._graphs[calls], self._kept[calls] = graph, returned
        kernels = kernels_of(graph.raw_cuda_graph())
        return {"kernels": kernels, "launched": self._launched[0], "returned": exported, "copied": copied}

    def _captured(self, calls: int, copied: bool) -> tuple[torch.cuda.CUDAGraph, Returned]:
        """A graph and what its calls returned. With `copied`, it ends with copies to the parent's memory."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            returned = [opened.unpack(opened.invoke()) for opened in self.ring[:calls]]
            if copied:
                self._copy(returned)
        graph.instantiate()
        return graph, returned

    def run(self, calls: int, method: str) -> dict[str, float | None]:
        """Runs one window. `device`: seconds of all of it, by the method. `host`: seconds until the last call
        returned."""
        match method:
            case "graph":
                return self._timed(lambda: self._graphs[calls].replay())
            case "events":
                return self._timed(lambda: self._copy(self._eager(calls)))
            case _:
                started = time.perf_counter()
                returned = self._eager(calls)
                host = time.perf_counter() - started
                self._copy(returned)
                return {"device": time.perf_counter() - started, "host": host}

    def _eager(self, calls: int) -> Returned:
        return [opened.unpack(opened.invoke()) for opened in self.ring[:calls]]

    def _copy(self, returned: Returned) -> None:
        """Copies returned outputs to the parent's memory, as part of the window."""
        if returning(self.ring[0]):
            for opened, tensors in zip(self.ring, returned, strict=False):
                opened.copy_over(tensors)

    def _timed(self, work: Callable[[], None]) -> dict[str, float | None]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        started = time.perf_counter()
        start.record()
        work()
        end.record()
        host = time.perf_counter() - started
        torch.cuda.synchronize()  # all streams: work on other streams is part of the window as well
        return {"device": start.elapsed_time(end) * 1e-3, "host": host}
