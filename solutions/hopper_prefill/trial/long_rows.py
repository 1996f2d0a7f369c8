"""Is the form `long` (long.cuh) to be taken? Times it beside what is chosen today, T at no cost, and FlashInfer.

    bash solutions/hopper_prefill/trial/build.sh FOLDER
    PYTHONPATH=benchmarks:tools python solutions/hopper_prefill/trial/long_rows.py FOLDER [NAME ...]

NAME: of other builds in FOLDER that have this form. Two minutes on a GPU. FlashInfer's times are those of one H100
(LOG.md, the 87 rows): on another card compare with `prefill_rows.py`. The last lines say what to decide by.
"""

import math
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import tvm_ffi
from prefill_shapes import rows as all_rows

LIMIT, CALLS, REPEATS = 125, 6, 7
LONG, INVERTERS = 3, 2  # GDN_FORM; warps (kInverters)
# Microseconds, FlashInfer 0.7.2.post1, one H100; None: not timed there.
FLASHINFER = {
    "16/32 4x8192": 371.1, "16/32 4x2048": 105.7, "16/32 8x1024": 115.8, "16/32 48x512": 353.9, "16/32 24x1000": 335.2,
    "16/32 100x300": 512.5, "4/12 100x300": 205.2, "16/32 lognormal64": 1098.0, "16/32 lognormal24": 626.5,
    "16/32 ragged16": 205.0, "4/16 lognormal64": 533.6, "16/64 lognormal24": 931.7, "16/64 ragged16": 368.6,
    "8/32 4x8192": 371.4, "16/64 4x2048": 209.4, "16/48 4x8192": 725.7, "4/12 48x512": 157.6, "16/64 48x512": 676.8,
    "4/16 8x1024": 59.5, "16/64 100x300": 977.4,
}  # fmt: skip
# Where the form is to win; the others say where it must not be chosen.
MEANT = [name for name in FLASHINFER if name.startswith(("16/32", "4/12"))]


def lengths_of(name: str) -> list[int]:
    """Of a row such as `16/32 4x8192`, or one drawn by prefill_shapes.py."""
    lengths = name.split()[1]
    if "x" in lengths:
        count, tokens = lengths.split("x")
        return [int(tokens)] * int(count)
    return list(next(row.lengths for row in all_rows() if row.name == name))


def arguments(name: str) -> list:
    k_heads, heads = (int(x) for x in name.split()[0].split("/"))
    lengths, size = lengths_of(name), 128
    tokens = sum(lengths)
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(tokens, k_heads, size), dim=-1).bfloat16() for _ in range(2))
    v = normal(tokens, heads, size).bfloat16()
    gate, beta = torch.exp(-0.1 * torch.rand(tokens, heads, device="cuda")), torch.rand(tokens, heads, device="cuda")
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    state = normal(len(lengths), heads, size, size)
    return [q, k, v, gate, beta, bounds, state, None, torch.empty_like(v), torch.empty_like(state)]


def call(function, form: int, given: list) -> None:
    os.environ["GDN_FORM"] = str(form)
    function(*given)


def record(function, form: int, sets: list[list]) -> torch.cuda.CUDAGraph:
    for given in sets:
        call(function, form, given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            call(function, form, sets[i % len(sets)])
    return graph


def measure(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Microseconds of a call, medians, in turns."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPEATS + 1):  # the first one is not counted
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000 / CALLS)
    return {name: statistics.median(of[1:]) for name, of in times.items()}


def distance(x: torch.Tensor, y: torch.Tensor) -> float:
    return ((x.float() - y.float()).norm() / y.float().norm()).item()


def print_clocks(library) -> None:
    """Medians over chunks 8 to 40 of block 0: of those who advance, from where a chunk begins; of warps that invert."""
    written = torch.zeros(3, 4, 64, 16, dtype=torch.int32, device="cuda")
    library.set_clocks(written)
    given = arguments("16/32 4x4096")
    for _ in range(3):
        call(library.gdn_prefill_k_last, LONG, given)
    torch.cuda.synchronize()
    clocks = written.cpu().to(torch.int64) & 0xFFFFFFFF
    median = lambda x: round(statistics.median(x.tolist()))  # noqa: E731
    for group in (0, 1):
        stamps = clocks[group, 0, 8:40]
        print(f"warpgroup {group}: a chunk", median(stamps[1:, 0] - stamps[:-1, 0]), "cycles; S Q^T issued, v there, "
              "T there and K K^T written, X, V', update issued, and before it half of S, S, O:",
              *(median(stamps[:, i] - stamps[:, 0]) for i in range(1, 10)))  # fmt: skip
    for warp in range(INVERTERS):
        of = clocks[2, 1 + warp, [c for c in range(9, 40) if c % INVERTERS == warp]]
        steps = (median(of[:, i + 1] - of[:, i]) for i in range(3))
        print(f"inverter {warp}: decays, wait for K K^T, T:", *steps, "a chunk", median(of[1:, 0] - of[:-1, 0]))
    of = clocks[2, 1 + INVERTERS, 8:40]
    print("P: waits for Q K^T, finds it:", *(median(of[:, i + 1] - of[:, i]) for i in range(2)))
    feed = clocks[2, 0, 8:40]
    print("feeder: waits for a place for keys", median(feed[:, 1] - feed[:, 0]))
    early = [
        ((clocks[0, 0, c, 3] - clocks[2, 1 + c % INVERTERS, c, 3] + 2**31) & 0xFFFFFFFF).item() - 2**31
        for c in range(8, 40)
    ]
    print("T is there before it is used by", statistics.median(early), min(early), max(early))


def main() -> None:
    folder, names, begun = Path(sys.argv[1]), sys.argv[2:], time.time()
    load = lambda name: tvm_ffi.load_module(str(folder / f"{name}.so"))  # noqa: E731
    print(torch.cuda.get_device_name(), flush=True)
    if (folder / "clocks.so").exists():
        print_clocks(load("clocks"))
    new = load("new").gdn_prefill_k_last
    kernels = {"chosen": (new, 0), "long": (new, LONG)}
    for name in ["no_t", *names]:
        if (folder / f"{name}.so").exists():
            kernels[name] = (load(name).gdn_prefill_k_last, LONG)
    print(
        "row".ljust(20),
        *(name.rjust(8) for name in kernels),
        "  FlashInfer / long   errors of each: output, state",
        flush=True,
    )
    gained: dict[str, float] = {}
    beside: dict[str, float] = {}
    for name, peer in FLASHINFER.items():
        if time.time() - begun > LIMIT:
            print("time is up")
            break
        sets = [arguments(name) for _ in range(2)]
        call(*kernels["chosen"], sets[0])
        output, state = sets[0][8].clone(), sets[0][9].clone()
        errors = {}
        for of, kernel in kernels.items():
            if of in ("chosen", "no_t"):
                continue
            sets[0][8].zero_(), sets[0][9].zero_()
            call(*kernel, sets[0])
            torch.cuda.synchronize()
            errors[of] = f"{distance(sets[0][8], output):.0e} {distance(sets[0][9], state):.0e}"
        us = measure({of: record(*kernel, sets) for of, kernel in kernels.items()})
        gained[name], beside[name] = us["chosen"] / us["long"], peer / us["long"]
        print(name.ljust(20), *(f"{us[of]:8.1f}" for of in kernels), f"  {beside[name]:.2f}  ", errors, flush=True)
        del sets
        torch.cuda.empty_cache()
    mean = lambda of: math.exp(statistics.fmean(math.log(x) for x in of)) if of else math.nan  # noqa: E731
    meant = [name for name in gained if name in MEANT]
    print(f"where it is meant: chosen / long {mean([gained[name] for name in meant]):.3f}, FlashInfer / best of both:",
          {name: round(beside[name] * max(1, 1 / gained[name]), 3) for name in meant})  # fmt: skip
    print("take it where chosen / long is over 1.02:", {name: round(x, 3) for name, x in gained.items() if x > 1.02})


if __name__ == "__main__":
    main()
