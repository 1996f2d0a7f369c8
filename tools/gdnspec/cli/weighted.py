"""The total time of weighted workloads: all calls of a log, or of a running model."""

from collections.abc import Iterable, Iterator

from gdnspec.cli.selection import Selected
from gdnspec.model.trace import Trace
from gdnspec.report.units import shown_time


def weighted(traces: Iterable[Trace], selected: Selected) -> Iterator[str]:
    """One sentence per solution and definition, if all workloads have weights. A workload that failed or did not run is
    not in the sum; the sentence says how many there are."""
    weights = {(item.definition.name, line.name): line.weight for item, lines in selected for line in lines}
    if None in weights.values():
        return
    groups: dict[tuple[str, str], list[Trace]] = {}
    for trace in traces:
        groups.setdefault((trace.definition, trace.solution), []).append(trace)
    for (definition, solution), mine in groups.items():
        timed = [(weights[definition, t.workload] or 0, t.timing) for t in mine if t.timing and t.status == "PASSED"]
        if not timed:
            continue
        taken = sum(weight * timing.median for weight, timing in timed)
        text = f"{definition}, {solution}: {sum(weight for weight, _ in timed)} calls take {shown_time(taken)}"
        if all(timing.bound for _, timing in timed):
            bound = sum(weight * (timing.bound or 0.0) for weight, timing in timed)
            text += f", {bound / taken:.0%} of the bound" if taken else ""
        for baseline in dict.fromkeys(ratio.baseline for t in mine for ratio in t.against):
            beside = [
                (weights[definition, t.workload] or 0, t.timing.median, ratio.ratio)
                for t in mine if t.timing for ratio in t.against if ratio.baseline == baseline
            ]  # fmt: skip
            if len(beside) == len(timed):
                theirs = sum(weight * median * ratio for weight, median, ratio in beside)
                text += f", {theirs / taken:.3f}x {baseline}"
        lost = len(mine) - len(timed)
        yield text + (f"; without {lost} of {len(mine)} workloads, which were not timed" if lost else "")
