"""Chooses a solution for a call."""

from collections.abc import Callable
from dataclasses import dataclass

from gdnspec.catalog.solutions import Solution
from gdnspec.choice.candidates import Asked, Candidates, candidates


@dataclass(frozen=True)
class Choice:
    """One solution that may serve a call. `reason`: why it has its place. `time`: seconds per call, measured or
    expected; None if nothing says."""

    solution: Solution
    reason: str
    time: float | None = None
    measured: bool = False

    @property
    def name(self) -> str:
        return self.solution.name


def choose(
    asked: Asked, refuse: Callable[[Solution], str | None] = lambda solution: None, peers: bool = False
) -> tuple[list[Choice], Candidates]:
    """The solutions that may serve the call, the best first, and what was asked."""
    found = candidates(asked, refuse, peers)
    return [Choice(solution, "the first by name: nothing was measured") for solution in found.serving], found
