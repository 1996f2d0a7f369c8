"""Compare two sets of traces: what can be compared, what cannot, and the ratios of times.

Ratios are time of B over time of A: above 1, A is faster.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gdnspec.catalog.traces import Measured
from gdnspec.model.trace import Interval, Method, Ratio, Timing, Trace

Key = tuple[str, str]  # definition, workload
Source = tuple[str, str]  # a solution's name and source hash
Rows = Mapping[Key, Measured]  # of one device


@dataclass(frozen=True)
class Pair:
    """A workload that was compared. Times are seconds per call, the interval is 95%, and `of_bound` are shares of the
    bound. `in_turns`: one run measured both, A B A B; otherwise the times come from two runs."""

    definition: str
    workload: str
    method: Method
    a: float
    b: float
    ratio: float
    interval: Interval
    a_of_bound: float | None
    b_of_bound: float | None
    in_turns: bool = False


@dataclass(frozen=True)
class Apart:
    """A workload that was not compared, with all reasons. Times in seconds, if known."""

    definition: str
    workload: str
    reasons: list[str]
    a: float | None = None
    b: float | None = None


@dataclass(frozen=True)
class Mean:
    """Geometric mean of the ratios of the `compared` among all `workloads`, and its interval; None without ratios."""

    compared: int
    workloads: int
    ratio: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Difference:
    """A field of the environment that differs in `pairs` of the compared workloads."""

    field: str
    pairs: int
    a: list[str]
    b: list[str]


@dataclass(frozen=True)
class Comparison:
    """The comparison of A on one device with B on the same or another device."""

    a_device: str
    b_device: str
    not_compared: list[Apart] = field(default_factory=list)
    compared: list[Pair] = field(default_factory=list)
    definitions: dict[str, Mean] = field(default_factory=dict)
    overall: Mean = Mean(0, 0)
    differences: list[Difference] = field(default_factory=list)


def compare(
    a: Rows, b: Rows, devices: tuple[str, str], order: Mapping[Key, int],
    sources: tuple[Source | None, Source | None] = (None, None),
) -> Comparison:  # fmt: skip
    """Compares every workload that A or B has. `order`: the place of each workload in its file; unknown ones come last.
    `sources`: the solutions A and B, if known, to find them among each other's baselines."""
    compared: list[tuple[Pair, Trace, Trace]] = []
    apart: list[Apart] = []
    of_a, of_b = sources if devices[0] == devices[1] else (None, None)
    for key in sorted({*a, *b}, key=lambda key: (key[0], order.get(key, len(order)), key[1])):
        x, y = a.get(key), b.get(key)
        reasons = _reasons(x, y)
        if x is not None and (beside := _in_turns(x, of_b, y)):
            compared.append((_turned(x.trace, beside), x.trace, x.trace))
        elif y is not None and (beside := _in_turns(y, of_a, x)):
            compared.append((swapped(_turned(y.trace, beside)), y.trace, y.trace))
        elif x is None or y is None or reasons:
            apart.append(Apart(*key, reasons, _median(x), _median(y)))
        else:
            compared.append((_pair(x.trace, y.trace), x.trace, y.trace))
    pairs = [pair for pair, _, _ in compared]
    names = list(dict.fromkeys(name for name, _ in sorted({*a, *b})))
    means = {
        name: mean([p for p in pairs if p.definition == name], sum(w.definition == name for w in apart))
        for name in names
    }
    differences = _differences([(x, y) for _, x, y in compared])
    return Comparison(*devices, apart, pairs, means, mean(pairs, len(apart)), differences)


# --- what is not compared ---------------------------------------------------------------------------------------


def _reasons(a: Measured | None, b: Measured | None) -> list[str]:
    """Why the two cannot be compared; empty if they can."""
    if a is None or b is None:
        return ["only B has it" if a is None else "only A has it"]
    alone = [*(f"A: {why}" for why in _unfit(a)), *(f"B: {why}" for why in _unfit(b))]
    methods = [m.trace.timing.method for m in (a, b) if m.trace.timing is not None]
    if len(set(methods)) > 1:
        alone.append(f"A is timed by {methods[0]}, B by {methods[1]}: methods are never compared")
    return alone


def _unfit(measured: Measured) -> list[str]:
    """Why a trace cannot be compared with any other."""
    trace, reasons = measured.trace, []
    if trace.status != "PASSED":
        said = trace.message.split("\n")[0]
        reasons.append(trace.status + (f": {said}" if said else ""))
    if measured.stale:
        reasons.append(f"stale: {measured.stale}")
    if trace.unclean:
        reasons.append(f"not ranked: {', '.join(trace.unclean)}")
    if trace.timing is None:
        return reasons or ["has no times"]
    if trace.timing.method == "cpu":
        reasons.append("wall time on a CPU: shown, never ranked")
    low, high = trace.timing.interval
    if not 0 < low <= trace.timing.median <= high:
        reasons.append("no time above 0 within its interval")
    return reasons


def _median(measured: Measured | None) -> float | None:
    return None if measured is None or measured.trace.timing is None else measured.trace.timing.median


# --- ratios -----------------------------------------------------------------------------------------------------


def ratio_interval(a: Timing, b: Timing) -> Interval:
    """The 95% interval of median(B) / median(A).

    The two intervals are independent, so they are combined in quadrature on the log scale. Intervals of a median are
    not symmetric, so the lower and the upper side are computed separately. With m, l, h the median and the ends of each
    interval:

        log low  = log(mB / mA) - sqrt(log(mB / lB)^2 + log(hA / mA)^2)
        log high = log(mB / mA) + sqrt(log(hB / mB)^2 + log(mA / lA)^2)

    The interval covers the variation within each run. It does not cover changes between the two runs, such as clocks;
    `gdnspec bench --against` avoids these by measuring both in turns.
    """
    ratio = b.median / a.median
    down = math.hypot(math.log(b.median / b.interval[0]), math.log(a.interval[1] / a.median))
    up = math.hypot(math.log(b.interval[1] / b.median), math.log(a.median / a.interval[0]))
    return ratio * math.exp(-down), ratio * math.exp(up)


def mean(pairs: list[Pair], not_compared: int) -> Mean:
    """The geometric mean, in which every workload counts once.

    Its interval is valid for these workloads only. The intervals of n ratios r, from l to h, are independent, so they
    are combined in quadrature on the log scale:

        log low  = mean(log r) - sqrt(sum(log(r / l)^2)) / n
        log high = mean(log r) + sqrt(sum(log(h / r)^2)) / n
    """
    n = len(pairs)
    if not n:
        return Mean(0, not_compared)
    centre = math.fsum(math.log(p.ratio) for p in pairs) / n
    down = math.hypot(*(math.log(p.ratio / p.interval[0]) for p in pairs)) / n
    up = math.hypot(*(math.log(p.interval[1] / p.ratio) for p in pairs)) / n
    return Mean(n, n + not_compared, math.exp(centre), (math.exp(centre - down), math.exp(centre + up)))


def _pair(a: Trace, b: Trace) -> Pair:
    x, y = a.timing, b.timing
    assert x is not None and y is not None
    ratio, interval = y.median / x.median, ratio_interval(x, y)
    return Pair(
        a.definition, a.workload, x.method, x.median, y.median, ratio, interval, _of_bound(x), _of_bound(y)
    )  # fmt: skip


def _in_turns(measured: Measured, source: Source | None, own: Measured | None) -> Ratio | None:
    """The ratio of a trace to the baseline `source`; None if there is none, or if that baseline's `own` trace cannot be
    compared."""
    if _unfit(measured) or (own is not None and not own.stale and _unfit(own)):
        return None
    return next((r for r in measured.trace.against if (r.baseline, r.baseline_hash) == source), None)


def _turned(a: Trace, b: Ratio) -> Pair:
    x = a.timing
    assert x is not None
    of_bound = None if x.bound is None or b.median <= 0 else x.bound / b.median
    return Pair(
        a.definition, a.workload, x.method, x.median, b.median, b.ratio, b.interval, _of_bound(x), of_bound, True
    )  # fmt: skip


def swapped(pair: Pair) -> Pair:
    """The pair with A and B exchanged."""
    low, high = pair.interval
    return replace(
        pair, a=pair.b, b=pair.a, ratio=1 / pair.ratio, interval=(1 / high, 1 / low), a_of_bound=pair.b_of_bound,
        b_of_bound=pair.a_of_bound,
    )  # fmt: skip


def _of_bound(timing: Timing) -> float | None:
    return None if timing.bound is None else timing.bound / timing.median


# --- what else differs ------------------------------------------------------------------------------------------


def _differences(pairs: list[tuple[Trace, Trace]]) -> list[Difference]:
    """Fields of the environment that differ between the traces of a pair, the device first."""
    rows = [({"device": a.device, **_fields(a)}, {"device": b.device, **_fields(b)}) for a, b in pairs]
    names = dict.fromkeys(name for row in rows for side in row for name in side)
    found = []
    for name in names:
        differ = [(a.get(name, "not said"), b.get(name, "not said")) for a, b in rows if a.get(name) != b.get(name)]
        if differ:
            values = ([str(value) for value in dict.fromkeys(map(str, side))] for side in zip(*differ, strict=True))
            found.append(Difference(name, len(differ), *values))
    return found


def _fields(trace: Trace) -> dict[str, Any]:
    """The environment as recorded, without the device's name: its slug is compared instead."""
    return {name: value for name, value in trace.environment.items() if name != "device"}
