"""Do a few workloads predict the time of all? Sampled steps of a replayed log beside its representatives, on this GPU.

    gdnspec workloads from-requests LOG --definition D --preset P -o all
    gdnspec workloads from-requests LOG --definition D --preset P -o few --reduce 32
    python benchmarks/served_steps.py D all/D.jsonl few/D.jsonl --solution S [--steps 500]

Steps are sampled evenly, by weight; each distinct one is timed once, the median of replays of a CUDA graph, and counts
as often as it was drawn. The few predict a mean time of a step by their weights. Values are drawn on the GPU: what is
timed is shapes.
"""

import argparse
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gdnspec.build.loader import load_function
from gdnspec.catalog.definitions import Found, definition, preset_of
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import load_workloads
from gdnspec.model.workload import Workload
from gdnspec.paths import solutions_dir

CALLS, WINDOWS = 6, 7


def tensors(found: Found, line: Workload) -> dict[str, Any]:
    """Inputs and outputs of a call by name, of ordinary values."""
    of, scope = found.definition, line.scope(found.definition, preset_of(line))
    given: dict[str, Any] = {}
    for t in (*of.inputs, *of.outputs):
        if t.is_scalar:
            given[t.name] = line.scalars.get(t.name, True if t.dtype == "bool" else None)
        elif t.name in line.omit:
            given[t.name] = None
        elif t.is_index:
            given[t.name] = torch.tensor(
                line.integer_inputs(of)[t.name], dtype=getattr(torch, t.dtype), device="cuda"
            ).reshape(of.shape(t, scope))
        else:
            shape, dtype = of.shape(t, scope), getattr(torch, t.dtype)
            x = torch.rand(shape, device="cuda") if t.name in ("g", "beta") else torch.randn(shape, device="cuda")
            x = 1 - 0.1 * x if t.name == "g" and of.conventions.decay_gate == "linear" else x
            x = -0.1 * x if t.name == "g" and of.conventions.decay_gate == "log" else x
            given[t.name] = (torch.nn.functional.normalize(x, dim=-1) if t.name in ("q", "k") else x).to(dtype)
    return given


def sampled_steps(weights: "np.ndarray[Any, np.dtype[np.float64]]", count: int) -> "np.ndarray[Any, np.dtype[np.intp]]":
    """Lines of `count` steps, evenly apart among all of them: drawn one by one, their mean could be off by a tenth."""
    places = (np.random.default_rng(0).random() + np.arange(count)) / count * weights.sum()
    return np.searchsorted(np.cumsum(weights), places, side="right")


def microseconds(found: Found, line: Workload, entry: Any, call: Any, prepare: Any) -> float:
    """Of one call, the median of windows."""
    names = [t.name for t in found.definition.outputs]
    sets = [tensors(found, line) for _ in range(2)]
    calls = []
    for given in sets:
        inputs = {name: x for name, x in given.items() if name not in names}
        out = {name: given[name] for name in names} if entry.call == "out" else {}
        more = {"prepared": prepare(**inputs)} if prepare else {}
        if entry.entry.split("::")[0].endswith(".cu"):
            values = tuple({**inputs, **out}.values())
            calls.append(lambda values=values: call(*values))
        else:
            calls.append(lambda words={**inputs, **out, **more}: call(**words))
    for one in calls:
        one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()
    times = []
    for _ in range(WINDOWS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("definition")
    parser.add_argument("all", type=Path)
    parser.add_argument("few", type=Path)
    parser.add_argument("--solution", required=True)
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("served_steps.py: needs a CUDA GPU")
    found = definition(given.definition)
    everything, few = (load_workloads(file, found) for file in (given.all, given.few))
    folder = solutions_dir() / given.solution
    entry = load_solution(folder).manifest.entries[given.definition]
    with tempfile.TemporaryDirectory() as build:
        call = load_function(folder, entry.entry, Path(build))
        prepare = load_function(folder, entry.prepare, Path(build)) if entry.prepare else None
        weights = np.array([line.weight or 1 for line in everything], dtype=np.float64)
        chosen = sampled_steps(weights, given.steps)
        drawn = Counter(chosen.tolist())
        sampled = sum(times * microseconds(found, everything[i], entry, call, prepare) for i, times in drawn.items())
        represented = [(line.weight or 1, microseconds(found, line, entry, call, prepare)) for line in few]
    predicted = given.steps * sum(w * t for w, t in represented) / sum(w for w, _ in represented)
    print(
        f"{given.definition}, {given.solution}: {given.steps} sampled steps ({len(drawn)} different) take "
        f"{sampled / 1e3:.2f} ms; {len(few)} workloads predict {predicted / 1e3:.2f} ms, "
        f"off by {predicted / sampled - 1:+.1%}"
    )


if __name__ == "__main__":
    main()
