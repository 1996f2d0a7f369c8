"""Whether a solution has replaced what others would judge or time it by."""

import statistics
import time
from typing import Any

import torch

_OWNERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "torch": (torch, ("equal", "allclose", "isclose", "isfinite", "isnan")),
    "torch.testing": (torch.testing, ("assert_close",)),
    "torch.Tensor": (torch.Tensor, ("equal", "allclose", "isclose", "copy_", "clone", "fill_", "__eq__")),
    "torch.cuda": (torch.cuda, ("synchronize", "Event", "Stream", "current_stream", "CUDAGraph", "graph")),
    "torch.cuda.CUDAGraph": (torch.cuda.CUDAGraph, ("capture_begin", "capture_end", "replay")),
    "torch.cuda.Event": (torch.cuda.Event, ("record", "elapsed_time", "synchronize")),
    "torch.cuda.Stream": (torch.cuda.Stream, ("synchronize",)),
    "statistics": (statistics, ("mean", "fmean", "median", "quantiles", "stdev", "pstdev")),
    "time": (time, ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time")),
}


def originals() -> dict[str, Any]:
    """The functions as they are before any of the solution's code has run, by name."""
    return {f"{name}.{attribute}": getattr(owner, attribute) for name, (owner, listed) in _OWNERS.items()
            for attribute in listed}  # fmt: skip


def replaced(before: dict[str, Any]) -> list[str]:
    """The names that mean something else by now."""
    return [name for name, now in originals().items() if now is not before[name]]
