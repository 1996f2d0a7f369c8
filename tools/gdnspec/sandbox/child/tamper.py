"""Detects whether a solution has replaced functions that others could judge or time it by.

No code of the solution may run during this. So it reads attributes from the dictionaries of modules and classes with
the interpreter's own means, and never asks a module with a replaced class or a metaclass with a property.
"""

import statistics
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from gdnspec.sandbox.child import exported, launches, opened, windows
from gdnspec.sandbox.wire import arena, channel

_OWNERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "torch": (torch, ("equal", "allclose", "isclose", "isfinite", "isnan")),
    "torch.testing": (torch.testing, ("assert_close",)),
    "torch.Tensor": (torch.Tensor, ("equal", "allclose", "isclose", "copy_", "clone", "fill_", "__eq__")),
    "torch.cuda": (torch.cuda, ("synchronize", "Event", "Stream", "current_stream", "CUDAGraph", "graph")),
    "torch.cuda.CUDAGraph": (torch.cuda.CUDAGraph, ("capture_begin", "capture_end", "replay", "instantiate")),
    "torch.cuda.Event": (torch.cuda.Event, ("record", "elapsed_time", "synchronize")),
    "torch.cuda.Stream": (torch.cuda.Stream, ("synchronize",)),
    "statistics": (statistics, ("mean", "fmean", "median", "quantiles", "stdev", "pstdev")),
    "time": (time, ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time")),
    "gdnspec.sandbox.child.opened": (opened, ("unpacked", "copy_over", "form_of", "Opened")),
    "gdnspec.sandbox.child.opened.Opened": (opened.Opened, ("__init__", "invoke", "accept", "unpack", "copy_over")),
    "gdnspec.sandbox.child.windows": (windows, ("Windows",)),
    "gdnspec.sandbox.child.windows.Windows": (
        windows.Windows,
        ("__init__", "run", "capture", "_eager", "_replay", "_timed"),
    ),
    "gdnspec.sandbox.child.exported": (exported, ("export", "returning")),
    "gdnspec.sandbox.child.launches": (launches, ("kernels_of", "launched")),
    "gdnspec.sandbox.wire.arena": (arena, ("attach",)),
    "gdnspec.sandbox.wire.channel.Channel": (channel.Channel, ("send", "receive")),
}

_MISSING = object()
_namespace_of_module: Callable[[Any], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
_namespace_of_class: Callable[[Any], dict[str, Any]] = vars(type)["__dict__"].__get__
_bases_of_class: Callable[[Any], tuple[type, ...]] = vars(type)["__mro__"].__get__


def originals() -> dict[str, Any]:
    """The functions by name, before any code of the solution runs; and the classes of modules, which could also be
    replaced."""
    found = {f"{name}.{attribute}": _stored(owner, attribute) for name, (owner, listed) in _OWNERS.items()
             for attribute in listed}  # fmt: skip
    return found | {f"{name}.__class__": type(owner) for name, (owner, _) in _OWNERS.items()}


def replaced(before: dict[str, Any]) -> list[str]:
    """The names that have another value now."""
    return [name for name, now in originals().items() if now is not before[name]]


def _stored(owner: Any, attribute: str) -> Any:
    """The value of an attribute of a module or class, read without running any foreign code."""
    kind = type(owner)
    if issubclass(kind, type):
        spaces = [_namespace_of_class(base) for base in _bases_of_class(owner)]
    else:
        spaces = [_namespace_of_module(owner)]
    return next((space[attribute] for space in spaces if attribute in space), _MISSING)
