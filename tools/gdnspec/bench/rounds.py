"""Evaluates rounds of windows: the time of a call by two clocks, and whether it is plausible.

A round is a window of n calls and one of 2n. Their difference divided by n is the cost of one more call, without the
costs per window, such as a launch or a message. The child times its windows on the device. The judge times the same
windows by its own clock, from the request until it has looked at the outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gdnspec.bench.statistics import Summary, once_for_a_window, ratio, summary
from gdnspec.model.trace import Method, Witness

AT_LEAST = 3  # rounds that must give a time
# How much the two clocks may differ over a window: a share of it, plus seconds. A CPU is disturbed, but never ranked.
TRUSTED: dict[Method, tuple[float, float]] = {"graph": (0.05, 20e-6), "events": (0.05, 20e-6), "cpu": (0.5, 1e-3)}
# The largest cost per window by the child's clock: a share of the longer window, plus seconds.
ONCE: dict[Method, tuple[float, float]] = {"graph": (0.05, 1e-4), "events": (0.05, 5e-4), "cpu": (0.5, 1e-3)}
# The share of rounds that may give no time. On a CPU, most of them may be disturbed.
LOST: dict[Method, float] = {"graph": 0.1, "events": 0.1, "cpu": 0.75}


class Window(NamedTuple):
    """The seconds of all calls of a window, by the judge's clock and as the child reports them."""

    clock: float
    device: float


@dataclass(frozen=True)
class Round:
    """`turn`: its number in the race; rounds of two solutions are paired by it."""

    turn: int
    once: Window
    twice: Window


@dataclass(eq=False)
class Rounds:
    """The rounds of one solution: windows of `calls` calls and of twice as many."""

    method: Method = "cpu"
    calls: int = 0
    all: list[Round] = field(default_factory=list)

    def add(self, turn: int, once: Window, twice: Window) -> None:
        self.all.append(Round(turn, once, twice))

    def __bool__(self) -> bool:
        return bool(self.all)

    # --- times of a call ----------------------------------------------------------------------------------------

    @property
    def counted(self) -> list[Round]:
        """The rounds in which more calls took longer, by both clocks. In the others, a disturbance was larger than the
        time of the calls, so their difference is not a time."""
        return [r for r in self.all if r.twice.clock > r.once.clock and r.twice.device > r.once.device]

    @property
    def device(self) -> list[float]:
        """Seconds per call by the child's clock, for each counted round."""
        return [(r.twice.device - r.once.device) / self.calls for r in self.counted]

    @property
    def clock(self) -> list[float]:
        """Seconds per call by the judge's clock, for each counted round."""
        return [(r.twice.clock - r.once.clock) / self.calls for r in self.counted]

    @property
    def summary(self) -> Summary:
        """The summary of `device`. Raises `ValueError` if no round counts."""
        return summary(self.device)

    @property
    def witness(self) -> Witness:
        """The measurement by the judge's clock, as a trace stores it."""
        once, twice = (summary([pair.clock for pair in side]).median for side in self._sides)
        return Witness(calls=self.calls, once=once, twice=twice, per_call=summary(self.clock).median)

    # --- doubts -------------------------------------------------------------------------------------------------

    def doubt(self) -> str | None:
        """Why the time is not plausible, or None."""
        lost = len(self.all) - len(self.counted)
        if len(self.counted) < AT_LEAST or lost > LOST[self.method] * len(self.all):
            return (
                f"in {lost} of {len(self.all)} rounds, {2 * self.calls} calls took no longer than {self.calls}: the "
                "machine is too busy, or the process hides when it works"
            )
        if self.disagree or (self.method == "cpu" and self._hidden()):
            device, clock = self.summary.median, summary(self.clock).median
            return (
                f"{self.method}: {device * 1e6:.2f} us per call, but {clock * 1e6:.2f} us by the judge's own "
                f"clock, over {self.calls} and {2 * self.calls} calls"
            )
        share, seconds = ONCE[self.method]
        twice = summary([pair.device for pair in self._sides[1]]).median
        if (cost := self._once()) > share * twice + seconds:
            return (
                f"{self.calls} calls take {cost * 1e6:.0f} us more than half of the time of {2 * self.calls}: their "
                "difference does not measure a call"
            )
        return None

    @property
    def _sides(self) -> tuple[list[Window], list[Window]]:
        return [r.once for r in self.all], [r.twice for r in self.all]

    @property
    def disagree(self) -> bool:
        """On a GPU: whether the clocks differ in most rounds. Both time the same windows, so both see any slowdown."""
        if self.method == "cpu" or not self.counted:
            return False
        device, clock = self.summary.median, summary(self.clock).median
        share, seconds = TRUSTED[self.method]
        apart = summary([abs(x - y) for x, y in zip(self.device, self.clock, strict=True)]).median
        return apart * self.calls > share * max(device, clock) * self.calls + seconds

    def _hidden(self) -> bool:
        """On a CPU: whether the child leaves out work in every window. The judge's clock includes all that the child
        times, and on a busy machine other waits. Work that the child leaves out is missing in each window. No part
        takes longer than the whole."""
        share, seconds = TRUSTED[self.method]
        windows = [window for side in self._sides for window in side]
        left_out = min(window.clock - share * window.clock - window.device for window in windows)
        return left_out > seconds or any(window.device > window.clock + seconds for window in windows)

    def _once(self) -> float:
        """The cost per window in seconds, besides its calls, by the child's clock. It is large if a solution works more
        slowly in the shorter window, to make the difference small. On a CPU, the smallest of all rounds, because a busy
        machine can only make windows longer."""
        once, twice = ([window.device for window in side] for side in self._sides)
        if self.method == "cpu":
            return min(2 * a - b for a, b in zip(once, twice, strict=True))
        return once_for_a_window(once, twice)


def paired(above: Rounds, below: Rounds) -> Summary | None:
    """The ratio of the times per call, over the rounds in which both have one; None if there are none."""
    theirs, mine = (dict(zip((r.turn for r in x.counted), x.device, strict=True)) for x in (above, below))
    both: Sequence[int] = sorted(theirs.keys() & mine.keys())
    return ratio([theirs[turn] for turn in both], [mine[turn] for turn in both])
