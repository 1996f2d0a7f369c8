"""The limits of this GPU: measured rates, which are cached, and nominal rates from its clocks and widths."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import ValidationError

from gdnspec import paths
from gdnspec.bench.health import driver_version, memory_bandwidth, sm_clock
from gdnspec.build.machine import Device
from gdnspec.catalog import kept
from gdnspec.model.trace import Ceilings

COPIED = 1 << 30  # bytes
SIDE = 8192  # of the square matrices
REPEATED, WARM = 20, 3
MEASURED_AGAIN = "this GPU's bandwidth and rate are measured again"
# Dense bfloat16 operations per multiprocessor and clock, by compute capability.
PER_CLOCK = {(8, 0): 2048, (8, 6): 1024, (8, 7): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192,
             (12, 0): 1024, (12, 1): 1024}  # fmt: skip


def ceilings(where: Device, again: bool = False, warn: Callable[[str], None] = lambda text: None) -> Ceilings:
    """The limits of the GPU. Measuring takes two seconds; later calls read the cache, unless `again`. `warn` gets a
    message about a broken entry. Needs a GPU."""
    file = _file(where)
    kept.sweep(file.parent)
    content = None if again else kept.kept(file, warn, MEASURED_AGAIN)
    if content is not None:
        try:
            return Ceilings.model_validate(json.loads(content))
        except (ValidationError, ValueError):
            kept.drop(file, warn, MEASURED_AGAIN)
    found = Ceilings(
        copy_bandwidth=copy_bandwidth(), matrix_rate=matrix_rate(), nominal_bandwidth=memory_bandwidth(),
        nominal_rate=nominal_rate(where),
    )  # fmt: skip
    _keep(file, found)
    return found


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a large copy on the device: the best of several runs."""
    source = torch.ones(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / _best(lambda: target.copy_(source))


def matrix_rate() -> float:
    """Operations per second of a large bfloat16 matrix product with random operands (zeros run faster)."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * SIDE**3 / _best(lambda: torch.mm(a, b, out=out))


def nominal_rate(where: Device) -> float | None:
    """Dense bfloat16 operations per second at the highest clock; None for a GPU that is not in the table."""
    clock, each = sm_clock(), PER_CLOCK.get(where.capability or (0, 0))
    if clock is None or each is None:
        return None
    return float(torch.cuda.get_device_properties(0).multi_processor_count) * each * clock


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs, because a ceiling is the best that can be reached."""
    times: list[float] = []
    for i in range(WARM + REPEATED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        if i >= WARM:
            times.append(start.elapsed_time(end) * 1e-3)
    return min(times)


def _file(where: Device) -> Path:
    return paths.cache_dir() / "ceilings" / f"{where.slug}-{driver_version() or 'unknown'}-{torch.version.cuda}.json"


def _keep(file: Path, found: Ceilings) -> None:
    """Ignores an unwritable cache: it only costs two seconds each time."""
    with contextlib.suppress(OSError):
        kept.keep(file, found.model_dump_json().encode())
