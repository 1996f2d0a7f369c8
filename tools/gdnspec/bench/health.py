"""Reads the state and properties of the GPU through NVML. Without NVML, all values are None."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from gdnspec.model.trace import Health

# NVML's reasons for a lower clock that make figures unrepresentative of the card. Idling is not one.
SLOWED = {
    0x04: "power cap", 0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}  # fmt: skip


@cache
def _nvml() -> Any:
    """The initialised library, or None."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package, the library or the driver is missing
        return None
    return pynvml


@cache
def _handle() -> Any:
    """The handle of the GPU that torch uses, whatever CUDA_VISIBLE_DEVICES says."""
    nvml = _nvml()
    if nvml is None:
        return None
    with_uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{with_uuid}") if with_uuid else nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError:
        return None


def _ask(question: Callable[[Any, Any], Any]) -> Any:
    """The answer of NVML; None if NVML or this GPU does not give one."""
    if _handle() is None:
        return None
    try:
        return question(_nvml(), _handle())
    except _nvml().NVMLError:
        return None


def health(ours: int = 1) -> Health:
    """Clocks, temperature, reasons for lower clocks, and the number of computing processes besides `ours`. Processes
    are counted, because NVML gives their numbers outside a container."""
    mask = _ask(lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h)) or 0
    running = _ask(lambda n, h: n.nvmlDeviceGetComputeRunningProcesses(h)) or []
    return Health(
        sm_mhz=_ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
        memory_mhz=_ask(lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
        temperature=_ask(lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
        power=_ask(lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3),
        throttled_by=[name for bit, name in SLOWED.items() if mask & bit],
        others=max(0, len(running) - ours),
    )


def driver_version() -> str | None:
    found = _ask(lambda n, h: n.nvmlSystemGetDriverVersion())
    return found.decode() if isinstance(found, bytes) else found


def memory_bandwidth() -> float | None:
    """The nominal bandwidth in bytes per second, from the memory's highest clock and width: two transfers per clock."""
    clock = _ask(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM))
    width = _ask(lambda n, h: n.nvmlDeviceGetMemoryBusWidth(h))
    return 2 * clock * 1e6 * width / 8 if clock and width else None


def sm_clock() -> float | None:
    """The highest clock of the multiprocessors, in Hz."""
    clock = _ask(lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM))
    return clock * 1e6 if clock else None
