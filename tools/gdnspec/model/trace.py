"""A measurement: one line of solutions/<name>/traces/<device>.jsonl, as `gdnspec bench --save` writes it.

All times are seconds for one call, all rates per second.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Version
from gdnspec.model.result import Likeness, OutputErrors, Status

Method = Literal["graph", "events", "cpu"]
METHODS: dict[Method, str] = {
    "graph": "device time of a replayed CUDA graph",
    "events": "device time between CUDA events around eager calls",
    "cpu": "wall time on a CPU: shown, never ranked",
}

# The resolution of each method's clock, in seconds per window: events count half microseconds.
RESOLUTION: dict[Method, float] = {"graph": 5e-7, "events": 5e-7, "cpu": 1e-7}

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


def _pair(value: Any) -> Any:
    """A strict model refuses a list where it wants a tuple, but JSON has only lists."""
    return tuple(value) if isinstance(value, list) else value


Interval = Annotated[tuple[float, float], BeforeValidator(_pair)]


class Witness(Model):
    """What the parent's own clock measured, in the same mode."""

    calls: Count
    once: Seconds  # a window of `calls` calls, messages included
    twice: Seconds  # a window of twice as many calls
    per_call: float  # seconds for each additional call


class Health(Model):
    """The state of the GPU before or after a measurement: what may have slowed it down."""

    sm_mhz: Count | None = None
    memory_mhz: Count | None = None
    temperature: int | None = None  # Celsius
    power: float | None = None  # W
    throttled_by: list[str] = Field(default_factory=list)
    others: Count = 0  # other processes that compute on it


class Ceilings(Model):
    """Measured limits of this device: copy bandwidth (bytes/s, read and written), bfloat16 products (operations/s)."""

    copy_bandwidth: Rate
    matrix_rate: Rate
    nominal_bandwidth: Rate | None = None
    nominal_rate: Rate | None = None


class Timing(Model):
    """How long a call takes. Every timed call had its own content, and the judge verified its outputs."""

    method: Method
    median: Seconds
    p10: Seconds
    p90: Seconds
    interval: Interval  # 95%, of the median
    samples: Count
    calls: Count  # timed, all of them
    ring_bytes: Count  # of all buffers together
    host: Seconds | None = None  # until an eager call returns, as the child reports it
    prepare: Seconds | None = None
    witness: Witness
    bytes: Count  # each input read once, each output written once
    operations: Count
    floor: Seconds | None = None  # no honest solution is faster
    bound: Seconds | None = None  # bytes and operations at this device's measured rates
    bound_by: Literal["memory", "compute"] | None = None
    verification: Seconds = 0.0  # wall time of filling and verifying buffers
    timed: Seconds = 0.0  # wall time of the timed windows

    @property
    def resolved(self) -> float:
        """The clock's resolution in seconds per call: a smaller figure is noise."""
        return RESOLUTION[self.method] / max(1, self.witness.calls)


class Ratio(Model):
    """Time of a baseline divided by the time of this solution, measured in turns. Above 1, this solution is faster."""

    baseline: str
    baseline_hash: str
    method: Method
    median: Seconds  # of the baseline
    ratio: Rate
    interval: Interval  # 95%, of the ratio


class Missing(Model):
    """A baseline without a ratio: it failed, was measured by another method, or does not serve the workload."""

    baseline: str
    status: Status
    why: str


class Trace(Model):
    """One solution on one workload on one device. `source_hash` and `definition_hash` say what was measured. If they no
    longer match, the trace is stale: reports mark it and never rank it.

    `batch_invariant` and `pieces` are what `gdnspec check --invariance --save` found on all workloads of the
    definition: whether the bits of a sequence depend on the rest of its batch, and how alike a prefill in one call and
    in pieces are. None: nobody asked."""

    schema_version: Version1
    definition: Name
    definition_version: Version = 1
    definition_hash: str
    workload: str
    suite: str
    preset: str
    regime: str | None = None
    axes: dict[Name, Count]
    sequence_lengths: list[Count] | None = None
    solution: str
    source_hash: str
    device: str  # slug
    recorded: str  # UTC, ISO 8601
    command: str
    seed: int
    status: Status
    message: str = ""
    outputs: list[OutputErrors] = Field(default_factory=list)
    timing: Timing | None = None
    against: list[Ratio] = Field(default_factory=list)
    missing: list[Missing] = Field(default_factory=list)  # baselines asked for that `against` lacks
    ceilings: Ceilings | None = None
    before: Health | None = None
    after: Health | None = None
    unclean: list[str] = Field(default_factory=list)  # why the figures are not ranked: throttled, in use by others
    batch_invariant: bool | None = None
    pieces: Likeness | None = None
    environment: dict[str, Any]

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the figure of a trace that passed."""
        timing = self.timing
        if timing is None or timing.bound is None or timing.median >= timing.bound:
            return []
        share = timing.bound / timing.median
        return [
            f"{share:.0%} of the bound: faster than this device's measured rates allow; "
            "find out what the solution does not move or compute"
        ]

    @property
    def ranked(self) -> bool:
        """Whether its speed may be compared: it passed, on a GPU that did nothing else."""
        timed = self.timing is not None and self.timing.method != "cpu"
        return self.status == "PASSED" and timed and not self.unclean
