"""The time of an engine's step, from traces of kernels if there are enough, otherwise from bounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import load_traces, stale_question, trace_files
from gdnspec.model import roles
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.trace import Ceilings, Trace
from gdnspec.numerics.floor import Work, bound
from gdnspec.traffic.calls import Operator, Shape
from gdnspec.traffic.kinds import LAUNCH

Array = NDArray[np.float64]

FEWEST = 5  # traces for a fit of four numbers
WORSE = 1.1  # of what is left by a fit: so much more is no reason for another number
DIGITS = 4  # of fitted numbers, so that they are the same on every machine in spite of rounding


@dataclass(frozen=True)
class KernelTime:
    """The time of a call in seconds: a launch, and what each byte, operation and token of the longest sequence adds.
    `of`: what it was fitted to. `off`: the relative error of the fit, median and largest."""

    launch: float
    byte: float
    operation: float
    token: float
    of: str
    off: tuple[float, float]

    def seconds(self, call: Work, longest: int) -> float:
        return self.launch + self.byte * call.bytes + self.operation * call.operations + self.token * longest

    def __str__(self) -> str:
        parts = [f"{self.launch * 1e6:.3g} us"]
        parts += [f"1 byte / {1e-12 / self.byte:.3g} TB/s"] if self.byte else []
        parts += [f"1 operation / {1e-12 / self.operation:.3g} TFLOP/s"] if self.operation else []
        parts += [f"{self.token * 1e9:.3g} ns per token of the longest sequence"] if self.token else []
        return f"{' + '.join(parts)}, {self.of}, off by {self.off[0]:.0%} at the median, {self.off[1]:.0%} at most"


@dataclass(frozen=True)
class BoundTime:
    """The time of a call in seconds at the device's measured rates. No kernel is faster."""

    ceilings: Ceilings

    def seconds(self, call: Work, longest: int) -> float:
        return bound(call, self.ceilings)[0]

    def __str__(self) -> str:
        bandwidth, rate = self.ceilings.copy_bandwidth / 1e12, self.ceilings.matrix_rate / 1e12
        return f"the bound at {bandwidth:.3g} TB/s and {rate:.0f} TFLOP/s"


@dataclass(frozen=True)
class Engine:
    """The rest of a model. `layers`: how many layers call these kernels. `step`, `token`: seconds that everything else
    takes per step and per token."""

    layers: int = 36
    step: float = 5e-3
    token: float = 10e-6


@dataclass
class StepCost:
    """The time of a step in nanoseconds, from `Engine` and the calls of a prefill and of a decode or verify."""

    engine: Engine
    ceilings: Ceilings
    prefill: tuple[Operator, KernelTime | BoundTime]
    rows: tuple[Operator, KernelTime | BoundTime]
    _rows: dict[int, float] = field(default_factory=dict)

    def __call__(self, lengths: Sequence[int], rows: int) -> int:
        seconds = self.engine.step + self._of_rows(rows)
        if lengths:
            operator, time = self.prefill
            shape = operator.shape(lengths, True)
            seconds += self.engine.layers * time.seconds(operator.work(shape), shape.longest)
            seconds += self.engine.token * shape.tokens
        return max(1, round(seconds * 1e9))

    def over_bound(self, tokens: int) -> float | None:
        """The time of a prefill of one sequence over its bound; None if its time is the bound."""
        operator, time = self.prefill
        if isinstance(time, BoundTime):
            return None
        shape = operator.shape((tokens,), True)
        return time.seconds(operator.work(shape), tokens) / bound(operator.work(shape), self.ceilings)[0]

    def _of_rows(self, rows: int) -> float:
        if rows and rows not in self._rows:
            operator, time = self.rows
            shape = Shape(rows * operator.each, rows, operator.each, True)
            kernel = self.engine.layers * time.seconds(operator.work(shape), shape.longest)
            self._rows[rows] = kernel + self.engine.token * shape.tokens
        return self._rows.get(rows, 0.0)


# --- from traces ------------------------------------------------------------------------------------------------


def measured(known: Iterable[Solution], found: Found, device: str) -> dict[str, Trace]:
    """The fastest trace per workload on the device. A trace counts even if the solution has changed since: the time
    stays about the same, and so the same log gives the same steps."""
    best: dict[str, Trace] = {}
    for solution in known:
        for trace in _traces(solution, device):
            if trace.definition != found.definition.name or not trace.ranked or stale_question(trace, found):
                continue
            other = best.get(trace.workload)
            if other is None or _median(trace) < _median(other):
                best[trace.workload] = trace
    return best


def ceilings_of(known: Iterable[Solution], device: str) -> Ceilings:
    """The device's rates, from its latest trace. Raises `SpecError` if there is none."""
    latest: Trace | None = None
    devices = set()
    for solution in known:
        devices |= {file.stem for file in trace_files(solution)}
        for trace in _traces(solution, device):
            if trace.ceilings and (latest is None or trace.recorded > latest.recorded):
                latest = trace
    if latest is None or latest.ceilings is None:
        raise SpecError(f"no trace has the rates of device {device!r} ({nearest(device, devices)})")
    return latest.ceilings


def kernel_time(traces: dict[str, Trace], device: str) -> KernelTime | None:
    """A fit to these traces by relative errors; None if there are too few."""
    chosen = [trace for trace in traces.values() if trace.timing is not None]
    if len(chosen) < FEWEST:
        return None
    rows = np.array([_features(trace) for trace in chosen])
    times = np.array([_median(trace) for trace in chosen])
    # In decode operations are as good as proportional to bytes: they count only where bytes alone fit worse.
    factors, missed = _fitted(rows, times)
    without, missed_without = _fitted(rows * [1.0, 1.0, 0.0, 1.0], times)
    if missed_without <= WORSE * missed:
        factors = without
    launch, byte, operation, token = (float(f"{x:.{DIGITS}g}") for x in factors)
    launch = max(launch, LAUNCH)  # long calls do not determine it
    off = np.abs(rows @ np.array([launch, byte, operation, token]) / times - 1)
    names = ", ".join(sorted({trace.solution for trace in chosen}))
    of = f"fitted to {len(chosen)} traces of {names} on {device}"
    return KernelTime(launch, byte, operation, token, of, (float(np.median(off)), float(off.max())))


def _fitted(rows: Array, times: Array) -> tuple[Array, float]:
    """Factors of the columns, none below 0, and the norm of the relative errors that are left."""
    from scipy.optimize import nnls

    scale = np.maximum(rows.max(axis=0), 1.0)  # columns of similar size for the solver
    factors, missed = nnls(rows / scale / times[:, None], np.ones(len(times)))
    return factors / scale, float(missed)


def _features(trace: Trace) -> tuple[float, float, float, float]:
    assert trace.timing is not None
    longest = max(trace.sequence_lengths or [_tokens_per_row(trace)])
    return 1.0, float(trace.timing.bytes), float(trace.timing.operations), float(longest)


def _tokens_per_row(trace: Trace) -> int:
    drafts = roles.axis(definition(trace.definition).definition, "drafts")
    return trace.axes.get(drafts, 1) if drafts else 1


def _median(trace: Trace) -> float:
    return trace.timing.median if trace.timing else float("inf")


def _traces(solution: Solution, device: str) -> list[Trace]:
    files = [file for file in trace_files(solution) if file.stem == device]
    return [trace for file in files for trace in load_traces(file, lambda _: None)]
