"""What traces say about batch invariance, for tables: quickly, because a trace file may have hundreds of lines."""

from collections.abc import Iterable, Iterator

from gdnspec.catalog.definitions import Found, definitions
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import is_stale, trace_files
from gdnspec.model.batch_invariance import badge
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import from_text, jsonl
from gdnspec.model.trace import Trace

# Other lines hold null there, or were written before the field existed: they need not be read whole.
MARKS = ('"batch_invariant": true', '"batch_invariant": false', '"pieces": "')


def found(solution: Solution, known: dict[str, Found] | None = None) -> list[Trace]:
    """The last trace of each definition and device that answers, if it still holds for today's solution, sorted by
    definition. Lines that cannot be read are skipped."""
    about = definitions() if known is None else known
    latest: dict[tuple[str, str], Trace] = {}
    for trace in _answering(solution):
        if trace.definition in about and is_stale(trace, solution, about[trace.definition]) is None:
            key = (trace.definition, trace.device)
            if key not in latest or trace.recorded >= latest[key].recorded:
                latest[key] = trace
    return [latest[key] for key in sorted(latest)]


def _answering(solution: Solution) -> Iterator[Trace]:
    for file in trace_files(solution):
        for number, text in jsonl(file):
            if any(mark in text for mark in MARKS):
                try:
                    yield from_text(Trace, text, file, number)
                except SpecError:
                    continue  # `gdnspec validate` reports it


def summary(traces: Iterable[Trace]) -> str:
    """One phrase per device: `x86-64: batch-invariant (2 of 3 definitions)`. Empty if nothing was asked."""
    by_device: dict[str, list[Trace]] = {}
    for trace in traces:
        if trace.batch_invariant is not None:
            by_device.setdefault(trace.device, []).append(trace)
    said = []
    for device, mine in sorted(by_device.items()):
        held = sum(trace.batch_invariant is True for trace in mine)
        count = "" if held in (0, len(mine)) else f" on {held} of {len(mine)} definitions"
        said.append(f"{device}: {badge(held > 0, None)}{count}")
    return "; ".join(said)
