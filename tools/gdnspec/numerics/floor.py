"""Derives from a definition what a call must move and compute, how long that takes on this device, and the time below
which a figure is not plausible."""

from dataclasses import dataclass
from typing import Literal

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model import roles
from gdnspec.model.expression import parse
from gdnspec.model.trace import Ceilings
from gdnspec.model.values import amount
from gdnspec.model.workload import Workload

BELIEVED = 0.9  # of the time at nominal rates: no clock runs a tenth faster


@dataclass(frozen=True)
class Work:
    """`bytes`: each input read once, each output written once. `operations`: of the recurrence itself. `all_needed`:
    whether every call needs all of it; rows that are skipped or share a slot count here but need not move."""

    bytes: int
    operations: int
    all_needed: bool = True


def work(found: Found, workload: Workload) -> Work:
    """The work of one call."""
    scope = workload.scope(found.definition, preset_of(found, workload))
    moved = found.definition.bytes_moved(scope, workload.omitted(found.definition))
    slots = [scope[x.name] for x in found.definition.inputs if x.indexes and x.name in scope]
    skip = roles.padding(found.definition)
    once_each = all(min(named, default=1) > skip and len(set(named)) == len(named) for named in slots)
    return Work(moved, int(amount(parse(found.definition.flops), scope)), once_each)


def floor(call: Work, ceilings: Ceilings) -> float | None:
    """The least plausible time of an honest call in seconds: 0.9 times the larger of bytes at nominal bandwidth and
    operations at the nominal rate. None if the nominal rates are unknown, or a call may need less work."""
    if ceilings.nominal_bandwidth is None or ceilings.nominal_rate is None or not call.all_needed:
        return None
    return BELIEVED * max(call.bytes / ceilings.nominal_bandwidth, call.operations / ceilings.nominal_rate)


def bound(call: Work, ceilings: Ceilings) -> tuple[float, Literal["memory", "compute"]]:
    """The time in seconds at this device's measured rates, and which rate limits it. For display only."""
    memory, compute = call.bytes / ceilings.copy_bandwidth, call.operations / ceilings.matrix_rate
    return (memory, "memory") if memory >= compute else (compute, "compute")
