"""The calls that decode_rows.py times: each on states, tokens and outputs of its own, in graphs, in turns."""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from decode_floor import SHAPES, SLOTS, D
from decode_shapes import Row

Call = Callable[[], object]
CACHES = 3.3  # of states that a ring reads, in L2 caches
LEAST, MOST = 6, 256  # calls of a ring
WINDOW = 400.0  # microseconds, at least
RATE = 4e6  # bytes a microsecond, roughly, after one for the launch: for how often a graph goes round its ring


class Memory:
    """Random numbers for the states of all rows: one draw a type, however many rows there are."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.needed = {bf16: max((elements(row) for row in rows if row.bf16 == bf16), default=0) for bf16 in (0, 1)}
        self.drawn: dict[bool, torch.Tensor] = {}

    def of(self, row: Row) -> torch.Tensor:
        if row.bf16 not in self.drawn:
            empty = torch.empty(self.needed[row.bf16], device="cuda", dtype=dtype_of(row))
            self.drawn[row.bf16] = empty.normal_()
        return self.drawn[row.bf16]


def dtype_of(row: Row) -> torch.dtype:
    return torch.bfloat16 if row.bf16 else torch.float32


def bytes_of(row: Row) -> int:
    """The states that a call reads; it writes as many."""
    return row.batch * row.heads[1] * D * D * dtype_of(row).itemsize


def calls_in(row: Row) -> int:
    cache: int = torch.cuda.get_device_properties(0).L2_cache_size
    return max(LEAST, min(MOST, math.ceil(CACHES * cache / bytes_of(row))))


def slots_of(row: Row) -> int:
    return min(SLOTS, (2**31 - 1) // (row.heads[1] * D * D))  # FlashInfer has int32 offsets


def elements(row: Row) -> int:
    states = slots_of(row) if row.pool else 2 * calls_in(row) * row.batch
    return states * row.heads[1] * D * D


class Ring:
    """The arguments of its calls, by the names and in the order of the definition. The states that it reads are three
    times the L2 cache together, so that no call finds its own there; nor does a copy, which has the same ones."""

    def __init__(self, row: Row, memory: Memory) -> None:
        (hk, h), batch, count = row.heads, row.batch, calls_in(row)
        self.pool, self.calls = row.pool, []
        self.rounds = math.ceil(WINDOW / (count * (1 + 2 * bytes_of(row) / RATE)))
        states = memory.of(row)[: elements(row)].view(-1, h, D, D)
        normal = partial(torch.randn, device="cuda")
        tokens = {name: normal(count, batch, 1, n, D).bfloat16() for name, n in (("q", hk), ("k", hk), ("v", h))}
        a, b = (normal(count, batch, 1, h).bfloat16() for _ in range(2))
        A_log, dt_bias = normal(h), normal(h).bfloat16()
        output = torch.empty_like(tokens["v"])
        for i in range(count):
            gates = {"A_log": A_log, "a": a[i], "dt_bias": dt_bias, "b": b[i], "scale": None, "use_qk_l2norm": None}
            given: dict[str, Any] = {name: x[i] for name, x in tokens.items()}
            if row.pool:
                named = random.sample(range(len(states)), batch)
                read, write = (torch.tensor(named, dtype=torch.int32, device="cuda") for _ in range(2))
                given |= {"pool": states, "read_slots": read, "write_slots": write, **gates, "output": output[i]}
            else:
                read, write = (states[n * batch : (n + 1) * batch] for n in (2 * i, 2 * i + 1))
                given |= {"state": read, **gates, "output": output[i], "new_state": write}
            self.calls.append(given)


def copies(ring: Ring, floor: Mapping[str, Callable[..., object]]) -> dict[str, list[Call]]:
    """decode_floor.py's copy of the states that the calls of a ring read, in each of its shapes."""
    if ring.pool:
        kernel, named = floor["pool"], [(x["pool"], x["read_slots"], x["write_slots"][:, None]) for x in ring.calls]
    else:
        kernel, named = floor["dense"], [(x["state"], x["new_state"]) for x in ring.calls]
    return {f"copy {shape}": [partial(kernel, *of_call, shape) for of_call in named] for shape in range(SHAPES)}


def captured(calls: Sequence[Call], rounds: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Without the collection of garbage that torch.cuda.graph begins with: it takes longer than a row."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for call in [*calls] * rounds:
            call()
        graph.capture_end()
    return graph


def in_turns(subjects: Mapping[str, Sequence[Call]], rounds: int, windows: int = 5) -> dict[str, float]:
    """Microseconds a call of each subject, the median over windows that take turns. Each has been called before."""
    stream = torch.cuda.Stream()
    graphs = {name: captured(calls, rounds, stream) for name, calls in subjects.items()}
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    for window in range(windows + 1):  # the first one warms up
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            if window > 0:
                marks[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in own) * 1e3 / (rounds * len(subjects[name]))
        for name, own in marks.items()
    }
