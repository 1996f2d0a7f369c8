"""Clocks that a test supplies, so that no verdict of a bench depends on how busy the machine is.

The child still makes every call, and the judge still looks at every output. Only the seconds of a window are invented:
they follow from the number of its calls. `both` and `judges` are for a command's own process, before it starts
(`gdnspec(..., before=steady.both)`). In a test's own process: `monkeypatch.setattr(Child, "window", steady.window)`.
"""

from typing import Any

from gdnspec.bench.rounds import Rounds, Window
from gdnspec.model.trace import Method
from gdnspec.sandbox.parent.process import Child

CALL = 3e-4  # seconds of a call
ONCE = 1e-4  # seconds that a window costs once
PACE = {"twin": 2.0}  # a solution of this name takes so many times as long

REAL = Child.window


def seconds(child: Child, calls: int) -> float:
    """Of the calls alone, without what a window costs once."""
    return CALL * PACE.get(child.solution.name, 1.0) * calls


def window(self: Child, calls: int, *more: Any, **named: Any) -> tuple[float, dict[str, Any]]:
    """As `Child.window`; both the judge's clock and the child's word are the test's."""
    _, said = REAL(self, calls, *more, **named)
    took = seconds(self, calls)
    return ONCE + took, {**said, "device": took, "host": took}


def judges_window(self: Child, calls: int, *more: Any, **named: Any) -> tuple[float, dict[str, Any]]:
    """As `Child.window`; the judge's clock is the test's, and what the child says stays as it is."""
    _, said = REAL(self, calls, *more, **named)
    return ONCE + seconds(self, calls), said


def rounds(device: list[float], method: Method, clock: float | None = None) -> Rounds:
    """Rounds from the seconds of a call in each; by the judge's clock as many, or `clock`."""
    found = Rounds(method, 100)
    for turn, each in enumerate(device):
        judges = each if clock is None else clock
        found.add(turn, Window(100 * judges, 100 * each), Window(200 * judges, 200 * each))
    return found


def both() -> None:
    """From now on every window of this process takes the time that `window` says."""
    Child.window = window  # type: ignore[method-assign]


def judges() -> None:
    """The same with `judges_window`: for children that lie about their time."""
    Child.window = judges_window  # type: ignore[method-assign]
