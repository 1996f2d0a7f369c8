"""The child's side of timing: many calls in a row, each on buffers of its own, replayed as a graph or eager.

What it says of its own time is the first of three witnesses: the parent's clock over the same window is the second, and
a floor that follows from the definition the third.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gdnspec.protocol.arena import Arena, Slot
from gdnspec.worker.opened import Opened


class Windows:
    """A ring of buffers of one workload, `stride` bytes apart, and the function that is called on each."""

    def __init__(self, message: dict[str, Any], arena: Arena, folder: Path, build_dir: Path) -> None:
        assert arena.block is not None
        self.arena = arena
        base = {name: Slot.from_json(slot) for name, slot in message["slots"].items()}
        shared = {name: base.pop(name) for name in message["shared"]}
        self.ring = [
            Opened(message, {name: slot.moved(i * message["stride"]) for name, slot in base.items()} | shared, arena,
                   folder, build_dir)
            for i in range(message["count"])
        ]  # fmt: skip
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._kept: dict[int, list[Any]] = {}  # what a graph's calls returned: its memory, read after each replay
        self._returned: list[Any] = []

    def prepare(self, wait: Callable[[], None]) -> float | None:
        """Of every buffer; the seconds of the first."""
        seconds = [opened.prepare(wait) for opened in self.ring]
        return seconds[0]

    def capture(self, calls: int) -> None:
        """Records `calls` calls as a graph; raises where the solution cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            returned = [opened.invoke() for opened in self.ring[:calls]]
        self._graphs[calls], self._kept[calls] = graph, returned

    def run(self, calls: int, method: str) -> dict[str, float | None]:
        """One window. `device`: seconds of all of it, by the method; `host`: until the last call returned."""
        match method:
            case "graph":
                return self._timed(lambda: self._replay(calls))
            case "events":
                return self._timed(lambda: self._eager(calls))
            case _:
                started = time.perf_counter()
                self._eager(calls)
                host = time.perf_counter() - started
                return {"device": host, "host": host}

    def hand_over(self) -> None:
        """Puts what was returned where the parent looks; not timed, and done at once, before the parent has asked."""
        for opened, returned in zip(self.ring, self._returned, strict=False):
            opened.accept(returned)
        self._returned = []

    def _eager(self, calls: int) -> None:
        self._returned = [opened.invoke() for opened in self.ring[:calls]]

    def _replay(self, calls: int) -> None:
        self._graphs[calls].replay()
        self._returned = self._kept[calls]

    def _timed(self, work: Callable[[], None]) -> dict[str, float | None]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        started = time.perf_counter()
        start.record()
        work()
        end.record()
        host = time.perf_counter() - started
        torch.cuda.synchronize()  # all streams: what runs beside is part of the window by the parent's clock
        return {"device": start.elapsed_time(end) * 1e-3, "host": host}
