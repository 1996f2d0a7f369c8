"""Choose a few calls that represent many: cluster similar calls, and take from each cluster a typical one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnspec.traffic.tally import Call

Floats = NDArray[np.float64]

CLOSE = 0.02  # relative difference of a representative's bound from its cluster's mean
RESTARTS = 4


@dataclass(frozen=True)
class Reduced:
    """`calls`: the chosen ones, with the weights of their clusters. `total`: seconds of all calls. `predicted`: the
    seconds that the chosen calls and weights give."""

    calls: list[Call]
    total: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.total - 1


def reduce(calls: Sequence[Call], seconds: Sequence[float], count: int, seed: int) -> Reduced:
    """Chooses at most `count` calls by k-means on lengths, sequences and time. `seconds`: the time of each call, which
    also gives its weight. The same calls and seed give the same choice."""
    times, each = np.array([call.times for call in calls], dtype=np.float64), np.array(seconds)
    total = float(times @ each)
    if len(calls) <= count:
        return Reduced(list(calls), total, total)
    features = _features(calls, each)
    labels, centres = _clusters(features, times * each, count, seed)
    chosen, predicted = [], 0.0
    for label in range(len(centres)):
        members = np.flatnonzero(labels == label)
        if not len(members):
            continue
        weight = int(times[members].sum())
        mean = float(times[members] @ each[members]) / weight
        off = np.abs(each[members] / mean - 1)
        distance = ((features[members] - centres[label]) ** 2).sum(axis=1)
        near = off <= max(CLOSE, float(off.min()))
        # Among the members with about the mean time, the most typical one; among equals, the earliest.
        best = members[np.lexsort((members, np.where(near, distance, np.inf)))[0]]
        chosen.append((int(best), weight))
        predicted += weight * float(each[best])
    chosen.sort()
    return Reduced([calls[i]._replace(times=weight) for i, weight in chosen], total, predicted)


def _features(calls: Sequence[Call], seconds: Floats) -> Floats:
    """Features of equal spread: logarithms of tokens, sequences, longest sequence and time; and whether a state is
    carried."""
    rows = [(sum(call.lengths), len(call.lengths), max(call.lengths, default=0), call.carried) for call in calls]
    table = np.array(rows, dtype=np.float64)
    table = np.column_stack([np.log1p(table[:, :3]), table[:, 3], np.log(seconds)])
    spread = table.std(axis=0)
    return np.asarray((table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _clusters(features: Floats, weight: Floats, count: int, seed: int) -> tuple[NDArray[np.int32], Floats]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    distinct = len(np.unique(features, axis=0))
    with threadpool_limits(1):  # several threads would add in an order that differs between runs
        fitted = KMeans(min(count, distinct), n_init=RESTARTS, random_state=seed % (1 << 32)).fit(
            features, sample_weight=weight / weight.mean()
        )
    return fitted.labels_, fitted.cluster_centers_
