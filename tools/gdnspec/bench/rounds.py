"""What rounds of windows say: the time of a call by two clocks, and whether it can be believed.

A round is a window of n calls and one of 2n. What one more call costs is the difference over n: what a window costs
once, a launch or a message, drops out. The child times its windows on the device, and the judge times the same windows
by a clock of its own, from the request until it has looked at the outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gdnspec.bench.statistics import Summary, once_for_a_window, ratio, summary
from gdnspec.model.trace import Method, Witness

AT_LEAST = 3  # rounds that give a time
# How far the two clocks may be apart over a window: a share of it, and seconds. A CPU does other things, unranked.
TRUSTED: dict[Method, tuple[float, float]] = {"graph": (0.05, 20e-6), "events": (0.05, 20e-6), "cpu": (0.5, 1e-3)}
# What a window may cost once by the child's clock: a share of the longer one, and seconds.
ONCE: dict[Method, tuple[float, float]] = {"graph": (0.05, 1e-4), "events": (0.05, 5e-4), "cpu": (0.5, 1e-3)}
# The share of rounds that may give no time. On a CPU most of them may be disturbed.
LOST: dict[Method, float] = {"graph": 0.1, "events": 0.1, "cpu": 0.75}


class Window(NamedTuple):
    """Seconds of all calls of a window: by the judge's clock, and by the child."""

    clock: float
    device: float


@dataclass(frozen=True)
class Round:
    """`turn`: its number in the race, by which rounds of two solutions are paired."""

    turn: int
    once: Window
    twice: Window


@dataclass(eq=False)
class Rounds:
    """Of one solution: windows of `calls` calls and of twice as many."""

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
        """Those in which more calls took longer by both clocks. In the others something else took longer than the
        calls do: their difference is no time."""
        return [r for r in self.all if r.twice.clock > r.once.clock and r.twice.device > r.once.device]

    @property
    def device(self) -> list[float]:
        """Seconds of a call by the child's clock, of each round that counts."""
        return [(r.twice.device - r.once.device) / self.calls for r in self.counted]

    @property
    def clock(self) -> list[float]:
        """The same by the judge's clock."""
        return [(r.twice.clock - r.once.clock) / self.calls for r in self.counted]

    @property
    def summary(self) -> Summary:
        """Of `device`. Raises `ValueError` where no round counts."""
        return summary(self.device)

    @property
    def witness(self) -> Witness:
        """What a trace keeps of the judge's clock."""
        once, twice = (summary([pair.clock for pair in side]).median for side in self._sides)
        return Witness(calls=self.calls, once=once, twice=twice, per_call=summary(self.clock).median)

    # --- doubts -------------------------------------------------------------------------------------------------

    def doubt(self) -> str | None:
        """Why the time is not believed; None where it is."""
        lost = len(self.all) - len(self.counted)
        if len(self.counted) < AT_LEAST or lost > LOST[self.method] * len(self.all):
            return (
                f"in {lost} of {len(self.all)} rounds {2 * self.calls} calls took no longer than {self.calls}: the "
                "machine is too busy for a time, or the process hides when it works"
            )
        if self._apart() if self.method != "cpu" else self._hidden():
            device, clock = self.summary.median, summary(self.clock).median
            return (
                f"{self.method}: {device * 1e6:.2f} us a call, by the judge's own clock {clock * 1e6:.2f} us, over "
                f"{self.calls} and {2 * self.calls} calls"
            )
        share, seconds = ONCE[self.method]
        twice = summary([pair.device for pair in self._sides[1]]).median
        if (cost := self._once()) > share * twice + seconds:
            return (
                f"{self.calls} calls take {cost * 1e6:.0f} us more than half of the time of {2 * self.calls}: their "
                "difference is no measure of a call"
            )
        return None

    @property
    def _sides(self) -> tuple[list[Window], list[Window]]:
        return [r.once for r in self.all], [r.twice for r in self.all]

    def _apart(self) -> bool:
        """On a GPU: in most rounds. Both clocks tell of the same windows, so what slows these down is in both."""
        device, clock = self.summary.median, summary(self.clock).median
        share, seconds = TRUSTED[self.method]
        apart = summary([abs(x - y) for x, y in zip(self.device, self.clock, strict=True)]).median
        return apart * self.calls > share * max(device, clock) * self.calls + seconds

    def _hidden(self) -> bool:
        """On a CPU: in every window. The judge's clock holds all that the child times, and on a busy machine any other
        wait as well; work that the child leaves out is in each of them. No part takes longer than the whole."""
        share, seconds = TRUSTED[self.method]
        windows = [window for side in self._sides for window in side]
        left_out = min(window.clock - share * window.clock - window.device for window in windows)
        return left_out > seconds or any(window.device > window.clock + seconds for window in windows)

    def _once(self) -> float:
        """Seconds that a window costs beside its calls, by the child's clock. Large where a solution works more slowly
        in the shorter window, which makes the difference of the two small. On a CPU the least of all rounds, as a busy
        machine lengthens any window."""
        once, twice = ([window.device for window in side] for side in self._sides)
        if self.method == "cpu":
            return min(2 * a - b for a, b in zip(once, twice, strict=True))
        return once_for_a_window(once, twice)


def paired(above: Rounds, below: Rounds) -> Summary | None:
    """The ratio of the times of a call, over the rounds of a race in which both have one; None where there is none."""
    theirs, mine = (dict(zip((r.turn for r in x.counted), x.device, strict=True)) for x in (above, below))
    both: Sequence[int] = sorted(theirs.keys() & mine.keys())
    return ratio([theirs[turn] for turn in both], [mine[turn] for turn in both])
