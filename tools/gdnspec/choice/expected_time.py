"""How long a call takes: as measured, or as expected from the nearest measured workload.

A time is expected from efficiency, the share of the bound that a measurement reached: bound of the call / efficiency.
The bound is the time of its bytes and operations at the device's measured rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import definition_hash, is_stale, load_traces, stale_source, trace_files
from gdnspec.choice.candidates import Asked
from gdnspec.choice.tuned import tuned_file, tuned_traces
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.errors import PlacedError, SpecError
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.trace import Ceilings, Trace
from gdnspec.model.values import amount


@dataclass(frozen=True)
class Figure:
    """A measurement that counts. `tuned`: made on this machine. `earlier`: of an earlier version of the solution."""

    trace: Trace
    scope: Scope
    time: float
    tuned: bool = False
    earlier: bool = False

    @property
    def efficiency(self) -> float | None:
        """The share of the bound that was reached."""
        timing, limits = self.trace.timing, self.trace.ceilings
        if timing is None or limits is None:
            return None
        return _bound(timing.bytes, timing.operations, limits) / self.time


def figures(found: Found, solution: Solution) -> list[Figure]:
    """The measurements of a solution on a definition, on every device: those of this machine first. Those of an earlier
    version count on a device where the present one has none. They are read again when a file has changed."""
    files = [tuned_file(found.definition.name), *trace_files(solution)]
    key = (definition_hash(found), solution.name, solution.source_hash, tuple(map(_stamp, files)))
    if key not in _read:
        if len(_read) >= MOST_READ:
            _read.clear()
        _read[key] = _figures(found, solution)
    return _read[key]


_read: dict[object, list[Figure]] = {}
MOST_READ = 1000


def _stamp(file: Path) -> tuple[str, int]:
    try:
        return str(file), file.stat().st_mtime_ns
    except OSError:
        return str(file), 0


def _figures(found: Found, solution: Solution) -> list[Figure]:
    counted = [
        Figure(trace, scope, trace.timing.median, tuned=True)
        for trace in tuned_traces(found.definition.name)
        if trace.solution == solution.name and trace.status == "PASSED" and trace.timing is not None
        if trace.definition_hash == definition_hash(found) and stale_source(trace, solution) is None
        if (scope := _scope(found, trace)) is not None
    ]
    saved = [
        Figure(trace, scope, trace.timing.median, earlier=is_stale(trace, solution, found) is not None)
        for file in trace_files(solution)
        for trace in _readable(file)
        if trace.definition == found.definition.name and trace.ranked and trace.timing is not None
        if trace.definition_hash == definition_hash(found) and (scope := _scope(found, trace)) is not None
    ]
    present = {figure.trace.device for figure in saved if not figure.earlier}
    counted += [figure for figure in saved if not figure.earlier or figure.trace.device not in present]
    return [figure for figure in counted if figure.time > 0]


def _readable(file: Path) -> list[Trace]:
    try:
        return load_traces(file, lambda text: None)
    except SpecError:
        return []  # `gdnspec validate` reports it


def _scope(found: Found, trace: Trace) -> Scope | None:
    preset = found.family.preset(trace.preset)
    const = {} if preset is None else {a: n for a, n in preset.axes.items() if a in found.definition.const_axes()}
    try:
        return found.definition.bind({**const, **trace.axes})
    except PlacedError:
        return None


def same(asked: Asked, figure: Figure) -> bool:
    """Whether the figure is of this very shape: all axes and all lengths are known and equal."""
    definition, trace = asked.found.definition, figure.trace
    alike = all(asked.scope.get(name) == figure.scope.get(name, ...) for name in _compared(definition))
    mine = _lengths(definition, asked.scope, asked.sequence_lengths)
    return alike and mine is not None and mine == _lengths(definition, figure.scope, trace.sequence_lengths)


def _lengths(definition: Definition, scope: Scope, given: Sequence[int] | None) -> list[int] | None:
    """The lengths of the sequences, the shortest first; None if they are unknown. Rows have none."""
    if definition.conventions.packing != "ragged":
        return []
    if given is None:
        return [roles.tokens(definition, scope)] if roles.batch(definition, scope) == 1 else None
    return sorted(given)


def nearest(asked: Asked, among: Sequence[Figure]) -> list[Figure]:
    """The figures whose shapes are the nearest, in factors of two over all known axes; several if they are as near."""
    distances = [_distance(asked, figure) for figure in among]
    least = min(distances, default=0.0)
    return [figure for figure, distance in zip(among, distances, strict=True) if distance == least]


def _distance(asked: Asked, figure: Figure) -> float:
    pairs = [(asked.scope.get(name), figure.scope.get(name)) for name in _compared(asked.found.definition)]
    pairs += [(_longest(asked.sequence_lengths), _longest(figure.trace.sequence_lengths))]
    return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in pairs if a is not None and b is not None)


def _longest(lengths: Sequence[int] | None) -> int | None:
    return max(lengths, default=0) if lengths is not None else None


def _compared(definition: Definition) -> list[str]:
    """The axes that decide a time: all but the number of slots, and those that follow."""
    return [axis.name for axis in definition.axes if axis.kind != "derived" and axis.role != "slots"]


def efficiency(among: Sequence[Figure]) -> float | None:
    """The geometric mean over figures."""
    each = [share for figure in among if (share := figure.efficiency) is not None]
    return math.exp(sum(map(math.log, each)) / len(each)) if each else None


def bound(asked: Asked, limits: Ceilings) -> float | None:
    """Seconds of the call's bytes and operations at the device's measured rates; None if an axis is unknown."""
    definition = asked.found.definition
    try:
        operations = amount(parse(definition.flops), asked.scope)
        return _bound(definition.bytes_moved(asked.scope), operations, limits)
    except ExpressionError:
        return None


def _bound(moved: float, operations: float, limits: Ceilings) -> float:
    return max(moved / limits.copy_bandwidth, operations / limits.matrix_rate)


def lengths_said(definition: Definition, scope: Scope, lengths: Sequence[int] | None) -> str:
    """`1x8192`, `16 sequences of 12,117 tokens`, `batch 8`, `batch 8 of 4 tokens`; empty if that is unknown."""
    rows, tokens = roles.batch(definition, scope), roles.tokens(definition, scope)
    if definition.conventions.packing == "ragged":
        alike = len(set(lengths)) == 1 if lengths else rows == 1
        each = f"{rows}x{tokens // max(rows, 1)}" if alike else f"{rows} sequences of {tokens:,} tokens"
        return each if rows and (tokens or lengths) else ""
    return f"batch {rows}" + (f" of {tokens // rows} tokens" if tokens > rows else "") if rows else ""
