"""The least that decode costs on this GPU: what a kernel takes that moves the states and does nothing else.

    python benchmarks/decode_floor.py [--heads 32] [--batches 1,2,4,8,16,32,64,256]

Microseconds a call and TB/s: a replayed graph of calls on states of their own, over three times the L2 cache together;
the median of nine windows, of the fastest of five shapes of the kernel.
"""

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gdnspec.build.loader import load_function

HERE = Path(__file__).resolve().parent
D, SLOTS, WINDOWS, SHAPES = 128, 4096, 9, 5


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Of one call, in a graph of all of them."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seen = []
    for replays in (1, *[max(2, 400 // len(calls))] * WINDOWS):
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        seen.append(start.elapsed_time(end) * 1e3 / (replays * len(calls)))
    return statistics.median(seen[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--batches", default="1,2,4,8,16,32,64,256")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("decode_floor.py: needs a CUDA GPU")
    batches = [int(x) for x in options.batches.split(",")]
    ring = 3.3 * torch.cuda.get_device_properties(0).L2_cache_size
    print(f"{torch.cuda.get_device_name()}, {options.heads} heads of {D} x {D}")
    print(f"{'':30}" + "".join(f"{batch:>14}" for batch in batches))
    with tempfile.TemporaryDirectory() as build:
        dense, pool = (load_function(HERE / "floor", f"kernel.cu::{name}", Path(build)) for name in ("dense", "pool"))

        def row(title: str, moved: int, size: int, make: Callable[[int, int], list[Callable[[int], object]]]) -> None:
            """`moved`: states that a row reads and writes; `size`: bytes of one."""
            cells = []
            for batch in batches:
                count = max(6, min(256, math.ceil(ring / (batch * size * (moved - 1)))))
                calls = make(batch, count)
                us = min(microseconds([partial(call, shape) for call in calls]) for shape in range(SHAPES))
                cells.append(f"{us:8.2f} {batch * size * moved / us / 1e6:5.2f}")
            print(f"{title:30}" + "".join(cells), flush=True)

        for dtype in (torch.float32, torch.bfloat16):
            name, size = str(dtype).removeprefix("torch."), options.heads * D * D * dtype.itemsize

            def apart(batch: int, count: int, dtype: torch.dtype = dtype) -> list[Callable[[int], object]]:
                states = torch.randn(2 * count, batch, options.heads, D, D, device="cuda").to(dtype)
                return [lambda shape, i=i: dense(states[2 * i], states[2 * i + 1], shape) for i in range(count)]  # type: ignore[misc]

            def slots(batch: int, count: int, dtype: torch.dtype = dtype) -> list[Callable[[int], object]]:
                memory = torch.empty(SLOTS, options.heads, D, D, device="cuda", dtype=dtype).normal_()
                named = [random.sample(range(SLOTS), batch) for _ in range(count)]
                index = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in named]
                return [lambda shape, i=i: pool(memory, index[i], index[i][:, None], shape) for i in range(count)]  # type: ignore[misc]

            row(f"{name}, apart", 2, size, apart)
            row(f"{name}, of {SLOTS} slots", 2, size, slots)

        def drafts(batch: int, count: int, tokens: int = 4) -> list[Callable[[int], object]]:
            memory = torch.empty(SLOTS, options.heads, D, D, device="cuda").normal_()
            index = [
                torch.tensor(random.sample(range(SLOTS), batch * (1 + tokens)), dtype=torch.int32, device="cuda")
                for _ in range(min(count, 24))
            ]
            return [lambda shape, x=x: pool(memory, x[:batch], x[batch:].view(batch, tokens), shape) for x in index]  # type: ignore[misc]

        row("float32, one read, four writes", 5, options.heads * D * D * 4, drafts)


if __name__ == "__main__":
    main()
