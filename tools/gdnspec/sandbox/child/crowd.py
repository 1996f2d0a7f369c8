"""Other work beside a solution's calls: kernels that fill the GPU, and simultaneous calls on two streams.

A CPU has neither: there, the other work runs before the call, and two calls run one after the other.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from gdnspec.sandbox.child.opened import Opened

# A product of the first size fills every multiprocessor of an H100; the second leaves most of them free.
SIZES = (4096, 1024)
PRODUCTS = 40  # about 8 ms on an H100: longer than most calls
ON_A_CPU = 64  # the size of a matrix on a CPU


class Crowd:
    """The other work of one process. It allocates memory at the first use."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._streams: list[torch.cuda.Stream] = []

    def work(self) -> None:
        """Starts the other work, and does not wait for it."""
        pairs = self._matrices()
        with torch.cuda.stream(self._stream(0)) if self.on_gpu else nullcontext():
            for i in range(PRODUCTS if self.on_gpu and pairs else len(pairs)):
                x, product = pairs[i % len(pairs)]
                torch.mm(x, x, out=product)

    def at_once(self, calls: Sequence[Opened]) -> list[Any]:
        """Calls each on its own stream. Returns what `Opened.accept` says about each."""
        if not self.on_gpu:
            return [opened.accept(opened.invoke()) for opened in calls]
        self.work()
        held = self._stream(0).record_event()  # all calls are queued before the first one begins
        described = []
        for i, opened in enumerate(calls):
            stream = self._stream(i + 1)
            stream.wait_event(held)
            with torch.cuda.stream(stream):
                described.append(opened.accept(opened.invoke()))
        return described

    def _stream(self, i: int) -> torch.cuda.Stream:
        while len(self._streams) <= i:
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        return self._streams[i]

    def _matrices(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each operand and the memory of its product; empty if the GPU is full, which is not the solution's fault."""
        if self._pairs:
            return self._pairs
        sizes, dtype = (SIZES, torch.bfloat16) if self.on_gpu else ((ON_A_CPU,), torch.float32)
        device = "cuda" if self.on_gpu else "cpu"
        try:
            made = [torch.zeros(2, size, size, dtype=dtype, device=device) for size in sizes]
        except torch.OutOfMemoryError:
            return []
        self._pairs = [(x[0], x[1]) for x in made]
        if self.on_gpu:
            torch.cuda.synchronize()
        return self._pairs
