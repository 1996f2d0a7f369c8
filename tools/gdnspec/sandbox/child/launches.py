"""Counts the kernels of a captured graph, and the kernels that a call launches outside a graph."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

KERNEL, CHILD_GRAPH = 0, 4  # of CUgraphNodeType
COPIES = ("Memcpy", "Memset")  # names of the profiler's events that are not kernels


def kernels_of(graph: int) -> int:
    """The number of kernel nodes of a CUDA graph, with those of child graphs. `graph`: the address of its CUgraph."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t()
    _hold(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _hold(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    found = 0
    for node in nodes[: count.value]:
        kind = ctypes.c_int()
        _hold(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value == KERNEL:
            found += 1
        elif kind.value == CHILD_GRAPH:
            inner = ctypes.c_void_p()
            _hold(driver.cuGraphChildGraphNodeGetGraph(ctypes.c_void_p(node), ctypes.byref(inner)))
            found += kernels_of(inner.value or 0)
    return found


def launched(work: Callable[[], Any]) -> int | None:
    """How many kernels `work` launches, by PyTorch's profiler; None if the profiler sees no GPU events."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize()
        names = [event.name for event in seen.events() or [] if event.device_type == DeviceType.CUDA]
    except RuntimeError:
        return None
    return sum(not name.startswith(COPIES) for name in names) if names else None


def _hold(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"the driver cannot read the captured graph: CUDA error {code}")
