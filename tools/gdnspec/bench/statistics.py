"""Medians with intervals. They assume no distribution, because times have a long tail."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

TAIL = 0.025  # on each side of a 95% interval


@dataclass(frozen=True)
class Summary:
    """Statistics in the unit of the samples. `interval`: 95%, of the median."""

    median: float
    p10: float
    p90: float
    interval: tuple[float, float]
    count: int

    @property
    def spread(self) -> float:
        """Width of the interval divided by the median."""
        low, high = self.interval
        return (high - low) / self.median if self.median > 0 else math.inf


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile, linear between neighbours. `ordered` is sorted and not empty."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def summary(samples: Sequence[float]) -> Summary:
    """Summarises samples. The interval is between order statistics; below 6 samples it covers all of them, as no
    narrower one has 95%. Raises `ValueError` without samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    outside = _outside(len(ordered))
    interval = (ordered[outside], ordered[len(ordered) - 1 - outside])
    return Summary(quantile(ordered, 0.5), quantile(ordered, 0.1), quantile(ordered, 0.9), interval, len(ordered))


@cache
def _outside(count: int) -> int:
    """How many of the smallest and of the largest samples a 95% interval of the median leaves out. The number of
    samples below the median is binomial(count, 1/2)."""
    below, left = 0, 0
    while True:
        below += math.comb(count, left)
        if below > TAIL * 2**count:
            return max(0, left - 1)
        left += 1


def ratio(above: Sequence[float], below: Sequence[float]) -> Summary | None:
    """The ratio of two lists of samples taken in turns. The quotient of a pair varies least, because both saw the same
    clocks and temperature. It works with logarithms, so that `ratio(b, a)` is the inverse. A pair with a 0, which is
    below the clock's resolution, is skipped; None if all are."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=False) if a > 0 and b > 0]
    if not logs:
        return None
    found = summary(logs)
    low, high = found.interval
    return Summary(
        math.exp(found.median), math.exp(found.p10), math.exp(found.p90), (math.exp(low), math.exp(high)), found.count
    )


def once_for_a_window(shorter: Sequence[float], longer: Sequence[float]) -> float:
    """The cost per window in seconds besides its calls, from windows of n and 2n calls: the median of twice the shorter
    minus the longer. It is large if a solution works more slowly in the shorter windows, to make their difference less
    than the time of n calls. Raises `ValueError` without rounds."""
    return summary([2 * once - twice for once, twice in zip(shorter, longer, strict=True)]).median
