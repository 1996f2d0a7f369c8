"""Launches that may run side by side: each has a lane, a stream of its own, and says which ones it comes after."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, eq=False)
class Step:
    """Launches in one lane. Lane 0 is the stream of the caller; a step comes after all of its lane before it."""

    lane: int
    launch: Callable[[], None]
    after: tuple["Step", ...] = ()


@lru_cache
def side_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Their blocks go first: what is in them is what others wait for."""
    return [torch.cuda.Stream(device, priority=-1) for _ in range(count)]


def run_steps(steps: list[Step], device: torch.device) -> None:
    """In their order, without a GPU or where there is one lane. Else in as many streams as there are lanes, which begin
    after a step of lane 0, and end before anything that the caller launches next. So memory that is allocated in the
    caller's stream before, and returned after, is safe; and a CUDA graph can record it. No one waits on the host."""
    lanes = 1 + max(step.lane for step in steps)
    if device.type != "cuda" or lanes == 1:
        for step in steps:
            step.launch()
        return
    streams = [torch.cuda.current_stream(device), *side_streams(device, lanes - 1)]
    done: dict[Step, torch.cuda.Event] = {}
    last: dict[int, Step] = {}
    waited_for = {before for step in steps for before in step.after if before.lane != step.lane}
    for step in steps:
        stream = streams[step.lane]
        for before in step.after:
            if before.lane != step.lane:
                stream.wait_event(done[before])
        with torch.cuda.stream(stream):
            step.launch()
        if step in waited_for:
            done[step] = stream.record_event()
        last[step.lane] = step
    for lane, stream in enumerate(streams[1:], 1):
        if lane in last:
            streams[0].wait_stream(stream)
