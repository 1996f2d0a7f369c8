"""The data for the page's scripts: rows for charts, and complete traces and verdicts to show after a click."""

from typing import Any

from gdnspec.model.base import Model
from gdnspec.model.result import CheckResult
from gdnspec.report.figures import interval, lengths, percent, plain, seconds
from gdnspec.report.rows import Row


class Shared:
    """Keeps each distinct value once. Many traces have the same environment."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = repr(value)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def shown(value: Any) -> Any:
    """The value with every text made safe to show."""
    if isinstance(value, dict):
        return {plain(key): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def _whole(model: Model, environments: Shared, without: set[str]) -> dict[str, Any]:
    data: dict[str, Any] = shown(model.model_dump(mode="json", exclude_defaults=True, exclude=without))
    data["environment"] = environments.place(shown(getattr(model, "environment", {})))
    return data


def trace_facts(row: Row, environments: Shared) -> dict[str, Any]:
    """A trace as JSON, with its lengths in words."""
    data = _whole(row.trace, environments, {"sequence_lengths", "environment", "schema_version"})
    said = lengths(row.trace.sequence_lengths)
    return {**data, "stale": row.stale, **({"lengths": said} if said else {})}


def verdict_facts(result: CheckResult, environments: Shared) -> dict[str, Any]:
    """A verdict as JSON. Only a failed one includes its errors."""
    without = {"environment", "schema_version", "key", "seal", "symmetries", "isolation"}
    return _whole(result, environments, without | (set() if result.failed else {"outputs"}))


def chart_row(row: Row, index: int) -> dict[str, Any] | None:
    """The data that charts need of a row; None if it is stale, failed or not timed."""
    trace, timing = row.trace, row.trace.timing
    if row.state != "passed" or timing is None or timing.median <= 0:
        return None
    note = ", ".join(label for label, _ in row.labels) or f"rank {row.rank} of {row.rivals}"
    each = row.tokens / row.batch if row.tokens and row.batch else 0
    series = f"{trace.solution}|{trace.preset}|{timing.method}"
    return {
        "row": index, "solution": plain(trace.solution), "workload": plain(trace.workload),
        "preset": plain(trace.preset), "device": plain(trace.device), "method": timing.method,
        "ranked": row.ranked, "note": note, "time": f"{seconds(timing.median)} ({interval(*timing.interval)})",
        "bound": percent(row.fraction) if row.fraction else "", "median_us": timing.median * 1e6,
        "tokens": row.tokens or None, "batch": row.batch or None,
        "tokens_line": f"{series}|{row.batch}", "batch_line": f"{series}|{each:g}",
        "bytes": timing.bytes or None, "share": row.fraction,
    }  # fmt: skip
