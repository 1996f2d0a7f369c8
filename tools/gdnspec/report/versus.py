"""Compare two traces of one workload on one device."""

from dataclasses import dataclass

from gdnspec.model.trace import Interval, Timing, Trace
from gdnspec.report.pairing import ratio_interval


@dataclass(frozen=True)
class Versus:
    """Time of the other trace over time of this one: above 1, this one is faster. `in_turns`: one run measured both,
    A B A B; otherwise the times come from two runs."""

    ratio: float
    interval: Interval
    in_turns: bool


def versus(a: Trace, b: Trace) -> Versus | None:
    """Time of `b` over time of `a`; None if the two cannot be compared."""
    said = next((ratio for ratio in a.against if ratio.baseline == b.solution), None)
    if said is not None:
        return Versus(said.ratio, said.interval, True)
    said = next((ratio for ratio in b.against if ratio.baseline == a.solution), None)
    if said is not None and min(said.interval) > 0:
        low, high = said.interval
        return Versus(1 / said.ratio, (1 / high, 1 / low), True)
    x, y = a.timing, b.timing
    if x is None or y is None or x.method != y.method or not (_positive(x) and _positive(y)):
        return None
    return Versus(y.median / x.median, ratio_interval(x, y), False)


def _positive(timing: Timing) -> bool:
    return timing.median > 0 and min(timing.interval) > 0
