"""Medians with intervals. Nothing is assumed of how times are distributed: they have a long tail."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

TAIL = 0.025  # on each side of a 95% interval


@dataclass(frozen=True)
class Summary:
    """Of the samples, in their unit. `interval`: 95%, of the median."""

    median: float
    p10: float
    p90: float
    interval: tuple[float, float]
    count: int

    @property
    def spread(self) -> float:
        """Width of the interval over the median."""
        low, high = self.interval
        return (high - low) / self.median if self.median > 0 else math.inf


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between neighbours; `ordered` is sorted and not empty."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def summary(samples: Sequence[float]) -> Summary:
    """The interval lies between order statistics. With fewer than 6 samples none are 95%: it is all of them."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    outside = _outside(len(ordered))
    interval = (ordered[outside], ordered[len(ordered) - 1 - outside])
    return Summary(quantile(ordered, 0.5), quantile(ordered, 0.1), quantile(ordered, 0.9), interval, len(ordered))


@cache
def _outside(count: int) -> int:
    """How many of the smallest samples, and of the largest, a 95% interval of the median leaves out: how many lie below
    the median is binomial(count, 1/2)."""
    below, left = 0, 0
    while True:
        below += math.comb(count, left)
        if below > TAIL * 2**count:
            return max(0, left - 1)
        left += 1


def ratio(above: Sequence[float], below: Sequence[float]) -> Summary | None:
    """Of two lists of samples taken in turns: each pair saw the same clocks and temperature, so its quotient is what
    varies least. Of logs, so that what is twice as fast is half as slow: `ratio(b, a)` is the inverse. A pair with a 0,
    below what a clock resolves, says nothing; None where all are such."""
    logs = [math.log(a / b) for a, b in zip(above, below, strict=False) if a > 0 and b > 0]
    if not logs:
        return None
    found = summary(logs)
    low, high = found.interval
    return Summary(
        math.exp(found.median), math.exp(found.p10), math.exp(found.p90), (math.exp(low), math.exp(high)), found.count
    )


def once_for_a_window(shorter: Sequence[float], longer: Sequence[float]) -> float:
    """Seconds that a window costs beside its calls, by windows of n and of 2n calls in the same rounds: the median of
    twice the shorter less the longer. Large where a solution works more slowly in the shorter windows, so that the
    difference of the two is less than n calls take. Raises `ValueError` where there is no round."""
    return summary([2 * once - twice for once, twice in zip(shorter, longer, strict=True)]).median
