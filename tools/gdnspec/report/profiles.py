"""Error against position in the sequence, from the verdicts of `gdnspec check --errors`."""

from collections.abc import Iterable
from typing import Any

from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload
from gdnspec.report.conformance import regime_of

METRICS = ("relative_l2", "worst_vector")


def profiles(verdicts: Iterable[CheckResult], known: dict[str, Workload]) -> list[dict[str, Any]]:
    """One entry per verdict and output with errors at more than one position. The longest sequences come first, because
    drift shows there."""
    found = [
        {
            "workload": result.workload,
            "regime": regime_of(result, known),
            "solution": result.solution,
            "device": result.device,
            "output": item.output,
            "budget": {metric: item.budget[metric] for metric in METRICS if metric in item.budget},
            "buckets": [[b.first, b.last, b.relative_l2, b.worst_vector] for b in item.profile],
        }
        for result in verdicts
        for item in result.outputs
        if len(item.profile) > 1
    ]
    return sorted(found, key=lambda entry: (-entry["buckets"][-1][1], entry["workload"], entry["solution"]))
