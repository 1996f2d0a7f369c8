"""Times of calls on one GPU: replays of a CUDA graph, or kernels by the profiler where no graph is recorded."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

WINDOW_SECONDS = 0.02
MOST_CALLS = 2000  # of PyTorch in what is recorded: a graph of more takes long to make, and gains little
UNRECORDED_WINDOWS = 2  # times of kernels have no gaps that differ, and the profiler takes longer than the call


@dataclass(frozen=True)
class Unrecorded:
    """A call that no graph records, and why."""

    call: Callable[[], Any]
    why: str

    def kernel_seconds(self, times: int) -> float:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(times):
                self.call()
            torch.cuda.synchronize()
        return sum(event.self_device_time_total for event in found.key_averages()) / 1e6 / times


@dataclass(frozen=True)
class Recorded:
    """A CUDA graph of a call, with the call, which owns the tensors that the graph reads."""

    call: Callable[[], Any]
    graph: Any

    def __call__(self) -> None:
        self.graph.replay()


Timed = Callable[[], Any] | Unrecorded


class Calls(TorchDispatchMode):
    """Counts calls of PyTorch that compute or copy something."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not call.is_view
        return call(*args, **(kwargs or {}))


def recorded(call: Callable[[], Any], device: torch.device) -> Timed:
    """The call as a CUDA graph if one can record it; on a CPU as it is."""
    if device.type == "cpu":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # kernels are compiled and tuned
        with Calls() as calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    if calls.count > MOST_CALLS:
        torch.cuda.synchronize()
        return Unrecorded(call, f"it makes {calls.count:,} calls of PyTorch, and at most {MOST_CALLS:,} are recorded")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:
        torch.cuda.synchronize()
        return Unrecorded(call, said_of(error))
    return Recorded(call, graph)


def said_of(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def seconds(call: Timed, times: int, device: torch.device) -> float:
    if isinstance(call, Unrecorded):
        return call.kernel_seconds(times)
    if device.type == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def medians(calls: dict[Any, Timed], windows: int, device: torch.device) -> dict[Any, float]:
    """Of each call, one window after the other of all."""
    times = {key: max(1, math.ceil(WINDOW_SECONDS / seconds(call, 1, device))) for key, call in calls.items()}
    found: dict[Any, list[float]] = {key: [] for key in calls}
    for window in range(windows):
        for key, call in calls.items():
            if window < UNRECORDED_WINDOWS or not isinstance(call, Unrecorded):
                found[key].append(seconds(call, times[key], device))
    return {key: statistics.median(each) for key, each in found.items()}
