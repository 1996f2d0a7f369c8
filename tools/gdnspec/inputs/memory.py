"""Checks that a workload fits into memory, before anything is drawn."""

from pathlib import Path

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model.workload import Workload

ON_A_CPU = 10  # times a workload's bytes: drawn, shared, in float64 for the reference, and intermediate values
DRAWING = 3  # times a workload's bytes: drawn in blocks, stored, and hashed or copied once


def require(found: Found, workload: Workload, times: int = DRAWING) -> None:
    """Raises `MemoryError` if `times` the bytes of its inputs and outputs do not fit into free memory."""
    scope = workload.scope(found.definition, preset_of(found, workload))
    need, have = times * found.definition.bytes_held(scope, workload.omitted(found.definition)), available()
    if have is not None and need > have:
        raise MemoryError(f"it needs about {need / 2**30:.1f} GiB, but only {have / 2**30:.1f} GiB are free")


def available() -> int | None:
    """Bytes available without swapping; None if the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
