"""One call as a CUDA graph, outside of timing: its outputs must be those of the same eager call."""

from collections.abc import Callable
from typing import Any

import torch

from gdnspec.sandbox.child.opened import Opened


class Replayed:
    """A captured call. Capturing runs nothing on the device. Raises what the capture raises."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._returned = opened.invoke()

    def run(self, wait: Callable[[], None]) -> list[dict[str, Any]] | None:
        """Replays it once, and copies what the call returned to the parent's memory. Returns the description of it;
        None if nothing is returned. Raises `Refused`."""
        self._graph.replay()
        described = self.opened.accept(self._returned)
        wait()  # for the copies too: the parent reads as soon as it is told
        return described
