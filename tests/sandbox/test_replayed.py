"""A replayed call, with a device that runs nothing until somebody waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gdnspec.sandbox.child.replayed import Replayed


class Device:
    """Queues work, as a stream does."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []

    def wait(self) -> None:
        for work in self.queued:
            work()
        self.queued.clear()


def test_the_copies_of_a_replay_are_done_when_the_parent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    device, memory = Device(), {"output": None}  # type: tuple[Device, dict[str, Any]]
    returned: list[str] = []

    @contextmanager
    def graph(_: object) -> Iterator[None]:
        yield

    def accept(values: list[str]) -> list[dict[str, Any]]:
        device.queued.append(lambda: memory.update(output=values[0]))
        return [{"shape": []}]

    def replay() -> None:
        device.queued.append(lambda: returned.append("replayed"))

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=replay))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    opened: Any = SimpleNamespace(invoke=lambda: returned, accept=accept)

    assert Replayed(opened).run(device.wait) == [{"shape": []}]
    assert memory["output"] == "replayed"
