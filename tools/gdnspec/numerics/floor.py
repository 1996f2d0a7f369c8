"""From a definition alone: what a call must move and compute, the time that takes here, and the time below which a
figure is not believed."""

from dataclasses import dataclass
from typing import Literal

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model.expression import parse
from gdnspec.model.trace import Ceilings
from gdnspec.model.values import amount
from gdnspec.model.workload import Workload

BELIEVED = 0.9  # of what the nominal rates allow: no clock runs above them by a tenth


@dataclass(frozen=True)
class Work:
    """`bytes`: each input read once, each output written once. `operations`: of the recurrence itself. `all_needed`:
    whether no call can do with less: rows that are skipped, or share a slot, are counted though they need not move."""

    bytes: int
    operations: int
    all_needed: bool = True


def work(found: Found, workload: Workload) -> Work:
    """What one call must do."""
    scope = workload.scope(found.definition, preset_of(found, workload))
    moved = found.definition.bytes_moved(scope, workload.omitted(found.definition))
    slots = [scope[x.name] for x in found.definition.inputs if x.indexes and x.name in scope]
    once_each = all(min(named, default=0) >= 0 and len(set(named)) == len(named) for named in slots)
    return Work(moved, int(amount(parse(found.definition.flops), scope)), once_each)


def floor(call: Work, ceilings: Ceilings) -> float | None:
    """Seconds that no honest call is faster than: 0.9 times the larger of bytes at nominal bandwidth and the
    recurrence's operations at the nominal rate. None where the nominal rates are not known, or less work will do."""
    if ceilings.nominal_bandwidth is None or ceilings.nominal_rate is None or not call.all_needed:
        return None
    return BELIEVED * max(call.bytes / ceilings.nominal_bandwidth, call.operations / ceilings.nominal_rate)


def bound(call: Work, ceilings: Ceilings) -> tuple[float, Literal["memory", "compute"]]:
    """Seconds at this device's measured rates, and which of them decides. For display: it proves nothing."""
    memory, compute = call.bytes / ceilings.copy_bandwidth, call.operations / ceilings.matrix_rate
    return (memory, "memory") if memory >= compute else (compute, "compute")
