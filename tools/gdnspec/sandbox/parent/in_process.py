"""A function of this process in the place of a child: what `gdnspec.check` judges while a kernel is being written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gdnspec.catalog.solutions import Solution
from gdnspec.sandbox.child.loop import Worker
from gdnspec.sandbox.parent.process import Child
from gdnspec.sandbox.wire.arena import Arena

NOT_ISOLATED = "none: the function runs in the judge's own process"


@dataclass(eq=False)
class _Borrowed:
    """Memory that its owner closes."""

    block: Tensor | None

    def close(self) -> None:
        self.block = None


class InProcess(Child):
    """Answers requests as a child does, by the same code, without a process of its own.

    Nothing holds the function back: it has no deadline, it can read what the judge holds, and a crash ends the judge.
    """

    def __init__(self, function: Callable[..., Any], solution: Solution, device: str) -> None:
        super().__init__(solution, device, interpret=False)
        self.isolation = NOT_ISOLATED
        folder = str(Path(function.__code__.co_filename).parent) if hasattr(function, "__code__") else ""
        hello = {"folder": folder, "build_dir": folder, "settings": {}, "device": device}
        self._function, self._worker = function, Worker(hello)
        self._worker.load = lambda spec: self._function

    def _mapped(self, op: str, wanted: str, message: dict[str, Any], arena: Arena, timeout: float) -> dict[str, Any]:
        # A handle of device memory cannot be opened by the process that made it.
        self._worker.attach = lambda description, fds: _Borrowed(arena.block)  # type: ignore[assignment, return-value]
        return self._request({**message, "op": op, "arena": {}}, timeout, wanted)

    def _request(
        self, message: dict[str, Any], timeout: float, wanted: str, fds: list[int] | None = None, awake: float = 0.0
    ) -> dict[str, Any]:
        reply = self._worker.answer(message, [])
        if reply["op"] == "error":
            raise self._said_error(reply)
        return reply

    def end(self) -> None:
        """Lets go of the memory."""
        self.is_open = False
        self._worker.answer({"op": "close"}, [])
