"""A token of the layer between its projections: in one launch, against the best separate kernels in sequence.

    python benchmarks/fused_step.py [--solution fused_decode_step] [--solution DIR ..] [--batches 1,2,4,8,16,64,128,256]
                                    [--preset qwen3-next-80b-a3b-tp1] [--build DIR] [--json FILE]

gdn_core_decode, float32 states in pools. A solution is a name, or with a slash in it the path of a folder: several are
compared in one run. The sequence is the fastest convolution update, the fastest decode and the fastest gated norm of
what is installed (triton_layer, cuda_decode, FlashInfer, FLA, vLLM), each timed by itself; then all three in one graph.
Favours to it: q, k and v lie apart for the kernels that cannot take them side by side, and FLA's convolution needs no
slots.

Microseconds a call: replays of a CUDA graph of calls on states, slots and weights of their own, over three times the L2
cache together; the median of windows, all graphs in turns. `share`: of the bandwidth that a large copy has in this
process, over all bytes that the step must move. What is off by more than 2% of another's norm is marked with `!`.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from gdnspec.catalog.definitions import definition, presets
from gdnspec.catalog.solutions import load_solution

HERE = Path(__file__).resolve().parent
DEFINITION, WINDOWS, WINDOW_US, TOLERANCE = "gdn_core_decode", 15, 2500.0, 0.02
Call = Callable[[], Any]
BF16, F32 = torch.bfloat16, torch.float32


def folder_of(name: str, among: str = "solutions") -> Path:
    """A solution's: by its name, or, with a slash in it, by its path."""
    return Path(name).resolve() if "/" in name else HERE.parent / among / name


class Ring:
    """The tensors of `count` calls, each call with its own slots of the same pools."""

    def __init__(self, batch: int, axes: dict[str, int], ring_bytes: float) -> None:
        self.batch, self.H, self.HK = batch, axes["num_v_heads"], axes["num_k_heads"]
        self.D, self.W = axes["value_head_dim"], axes["kernel_width"]
        self.keys, self.values = self.HK * self.D, self.H * self.D
        self.C = 2 * self.keys + self.values
        self.count = max(6, min(256, math.ceil(ring_bytes / (4 * batch * self.values * self.D))))
        n, slots = self.count, self.count * batch + 64
        order = torch.randperm(slots, device="cuda").int()
        self.slots = order[: n * batch].view(n, batch)
        self.state_slots = order.flip(0)[: n * batch].view(n, batch).contiguous()
        self.qkv, self.z = self.normal(n, batch, self.C), self.normal(n, batch, self.values)
        self.a, self.b = self.normal(n, batch, self.H), self.normal(n, batch, self.H)
        self.conv_weight, self.norm_weight = self.normal(n, self.C, self.W) / 2, 1 + self.normal(n, self.D) / 4
        self.A_log, self.dt_bias = self.normal(n, self.H).float(), self.normal(n, self.H)
        self.conv_states = self.normal(slots, self.C, self.W - 1)
        self.states = torch.empty(slots, self.H, self.D, self.D, device="cuda").normal_()
        self.mixed, self.read = self.normal(n, batch, self.C), self.normal(n, batch, self.values)
        self.output = torch.empty_like(self.z)

    @staticmethod
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(BF16)

    def core(self, i: int) -> dict[str, Any]:
        """The arguments of gdn_core_decode."""
        return {
            "qkv": self.qkv[i], "z": self.z[i], "a": self.a[i], "b": self.b[i], "conv_weight": self.conv_weight[i],
            "conv_bias": None, "A_log": self.A_log[i], "dt_bias": self.dt_bias[i], "norm_weight": self.norm_weight[i],
            "conv_states": self.conv_states, "conv_slots": self.slots[i], "recurrent_states": self.states,
            "state_slots": self.state_slots[i],
        }  # fmt: skip

    def decode(self, i: int, packed: bool) -> dict[str, Any]:
        """The arguments of gdn_decode_pool_k_last: views of the convolution's rows, or as much memory where q, k and v
        lie apart."""
        mixed, B = self.mixed[i], self.batch
        if packed:
            parts = mixed.split([self.keys, self.keys, self.values], dim=1)
        else:
            parts = mixed.view(-1).split([B * self.keys, B * self.keys, B * self.values])
        q, k, v = (x.view(B, 1, -1, self.D) for x in parts)
        return {
            "q": q, "k": k, "v": v, "pool": self.states, "read_slots": self.state_slots[i],
            "write_slots": self.state_slots[i], "A_log": self.A_log[i], "a": self.a[i][:, None],
            "dt_bias": self.dt_bias[i], "b": self.b[i][:, None], "scale": None, "use_qk_l2norm": True,
            "output": self.read[i].view(B, 1, self.H, self.D),
        }  # fmt: skip

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self.batch, self.H, self.D)


class Solution:
    """One that serves gdn_core_decode, as the judge calls it."""

    def __init__(self, name: str, build: Path) -> None:
        folder = folder_of(name)
        found = load_solution(folder)
        self.name = f"{folder.parent.name}/{found.name}" if "/" in name else found.name
        self.entry = found.manifest.entries[DEFINITION]
        self.call = load_function(folder, self.entry.entry, build / f"{zlib.crc32(str(folder).encode()):08x}")

    def calls(self, ring: Ring) -> list[Call]:
        return [self.bound(ring.core(i), ring.output[i]) for i in range(ring.count)]

    def bound(self, given: dict[str, Any], output: torch.Tensor) -> Call:
        if self.entry.entry.split("::")[0].endswith(".cu"):
            return lambda: self.call(*given.values(), output)
        if self.entry.call == "out":
            return lambda: self.call(**given, output=output)
        return lambda: output.copy_(self.call(**given))


# --- separate kernels -------------------------------------------------------------------------------------------------

Piece = tuple[str, Callable[[Ring, int], Call]]


def available(kind: str, made: list[tuple[str, Callable[[], Callable[[Ring, int], Call]]]]) -> Iterator[Piece]:
    """Those whose packages are there."""
    for name, make in made:
        try:
            yield name, make()
        except Exception as error:  # a package that is not here, or of another version
            print(f"{kind} of {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")


def convolutions(build: Path) -> Iterator[Piece]:
    def ours() -> Callable[[Ring, int], Call]:
        f = load_function(folder_of("triton_layer"), "conv1d.py::conv1d_decode", build)
        return lambda r, i: lambda: f(r.qkv[i], r.conv_weight[i], None, r.conv_states, r.slots[i], r.mixed[i])

    def vllm() -> Callable[[Ring, int], Call]:
        from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update as f

        # It writes over its input.
        return lambda r, i: (
            lambda: f(r.mixed[i], r.conv_states, r.conv_weight[i], None, "silu", conv_state_indices=r.slots[i])
        )

    def fla() -> Callable[[Ring, int], Call]:
        from fla.modules.convolution import causal_conv1d_update as f

        def bound(r: Ring, i: int) -> Call:
            cache = torch.zeros(r.batch, r.C, r.W, device="cuda", dtype=BF16)
            return lambda: f(x=r.qkv[i][:, None], cache=cache, weight=r.conv_weight[i], activation="silu")

        return bound

    yield from available("convolution", [("triton_layer", ours), ("vLLM", vllm), ("FLA", fla)])


def decodes(build: Path) -> Iterator[Piece]:
    def ours() -> Callable[[Ring, int], Call]:
        f = load_function(folder_of("cuda_decode"), "kernel.cu::gdn_decode_pool_k_last", build / "cuda_decode")
        return lambda r, i: (lambda given: lambda: f(*given.values()))(r.decode(i, packed=False))

    def flashinfer() -> Callable[[Ring, int], Call]:
        f = load_function(folder_of("flashinfer", "peers"), "kernel.py::decode_pool_k_last", build)
        prepared = {"same": True, "all_live": True}
        return lambda r, i: (lambda given: lambda: f(**given, prepared=prepared))(r.decode(i, packed=True))

    yield from available("decode", [("cuda_decode", ours), ("FlashInfer", flashinfer)])


def norms(build: Path) -> Iterator[Piece]:
    def ours() -> Callable[[Ring, int], Call]:
        f = load_function(folder_of("triton_layer"), "gated_norm.py::gated_rms_norm", build)
        return lambda r, i: lambda: f(
            r.heads(r.read[i]), r.heads(r.z[i]), r.norm_weight[i], None, r.heads(r.output[i])
        )  # fmt: skip

    def fla() -> Callable[[Ring, int], Call]:
        from fla.modules.fused_norm_gate import rms_norm_gated as f

        return lambda r, i: (
            lambda: f(r.heads(r.read[i]), r.heads(r.z[i]), r.norm_weight[i], None, activation="swish", eps=1e-6)
        )

    def vllm() -> Callable[[Ring, int], Call]:
        from vllm.model_executor.layers.mamba.ops.layernorm_gated import rms_norm_gated as f

        return lambda r, i: lambda: f(
            r.read[i].view(-1, r.D), r.norm_weight[i], None, z=r.z[i].view(-1, r.D), eps=1e-6
        )  # fmt: skip

    yield from available("norm", [("triton_layer", ours), ("FLA", fla), ("vLLM", vllm)])


# --- time -------------------------------------------------------------------------------------------------------------


class Graph:
    """Calls, captured."""

    def __init__(self, calls: list[Call]) -> None:
        self.count, self.seen, self.replays = len(calls), [], 1
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            for call in calls:
                call()
        self.window()
        self.replays = max(2, math.ceil(WINDOW_US / (self.seen.pop() * self.count)))

    def window(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(self.replays):
            self.graph.replay()
        end.record()
        end.synchronize()
        self.seen.append(start.elapsed_time(end) * 1e3 / (self.replays * self.count))

    @property
    def median(self) -> float:
        return statistics.median(self.seen)


def take_turns(graphs: list[Graph], windows: int) -> None:
    for _ in range(windows):
        for graph in graphs:
            graph.window()


def fastest(kind: str, pieces: list[Piece], ring: Ring) -> tuple[str, float, list[Call]]:
    """The name of the fastest, its microseconds, its calls."""
    found: dict[str, tuple[Graph, list[Call]]] = {}
    for name, make in pieces:
        try:
            calls = [make(ring, i) for i in range(ring.count)]
            found[name] = Graph(calls), calls
        except Exception as error:  # another library may refuse a shape; the others go on
            print(f"{kind} of {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
            torch.cuda.synchronize()
    take_turns([graph for graph, _ in found.values()], 7)
    name = min(found, key=lambda name: found[name][0].median)
    return name, found[name][0].median, found[name][1]


def mark_of(solution: Solution, ring: Ring, plain: Callable[..., torch.Tensor]) -> str:
    """`!` where it is not what plain PyTorch makes of the same inputs; the pools are as they were afterwards."""
    before = ring.states.clone() if ring.batch * ring.count < 1024 else None
    given = ring.core(0)
    slots = given["state_slots"].long(), given["conv_slots"].long()
    kept = ring.states[slots[0]].clone(), ring.conv_states[slots[1]].clone()
    wanted = plain(**given)
    after = ring.states[slots[0]].clone(), ring.conv_states[slots[1]].clone()
    ring.states[slots[0]], ring.conv_states[slots[1]] = kept
    solution.bound(given, ring.output[0])()
    errors = [(ring.output[0] - wanted).float().norm() / wanted.float().norm()]
    errors += [(ring.states[slots[0]] - after[0]).norm() / after[0].norm()]
    errors += [(ring.conv_states[slots[1]] != after[1]).sum()]
    ring.states[slots[0]], ring.conv_states[slots[1]] = kept
    untouched = before is None or torch.equal(before, ring.states)
    return "" if untouched and all(float(x) < TOLERANCE for x in errors) else "!"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solution", action="append", help="may be given several times")
    parser.add_argument("--batches", default="1,2,4,8,16,64,128,256")
    parser.add_argument("--preset", default="qwen3-next-80b-a3b-tp1")
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    parser.add_argument("--json", type=Path, help="append a line a batch")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("fused_step.py: needs a CUDA GPU")
    os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
    contract, axes = definition(DEFINITION).definition, presets()[options.preset].axes
    ring_bytes = 3.3 * torch.cuda.get_device_properties(0).L2_cache_size
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        build = options.build or Path(scratch)
        names = options.solution or ["fused_decode_step"]
        with ThreadPoolExecutor() as pool:  # each waits for a compiler
            compiling = pool.submit(lambda: list(decodes(build)))
            solutions = list(pool.map(lambda name: Solution(name, build), names))
            kinds = {"convolution": list(convolutions(build)), "decode": compiling.result(), "norm": list(norms(build))}
        plain = load_function(folder_of("torch_layer"), "kernel.py::core_decode", build)
        bandwidth = copy_bandwidth() / 1e6  # bytes a microsecond
        print(f"{torch.cuda.get_device_name()}, {options.preset}; a copy: {bandwidth / 1e6:.2f} TB/s\n")
        print(f"{'batch':>5} {'bytes':>8} {'conv':>7} {'decode':>7} {'norm':>7} {'in a row':>9}  "
              + "".join(f"{s.name[-22:]:>24} ratio  share" for s in solutions))  # fmt: skip
        for batch in map(int, options.batches.split(",")):
            ring = Ring(batch, dict(axes), ring_bytes)
            marks = [mark_of(solution, ring, plain) for solution in solutions]
            best = {kind: fastest(kind, pieces, ring) for kind, pieces in kinds.items()}
            in_a_row = Graph([call for calls in zip(*(calls for _, _, calls in best.values()), strict=True)
                              for call in calls])  # fmt: skip
            graphs = [Graph(solution.calls(ring)) for solution in solutions]
            take_turns([in_a_row, *graphs], WINDOWS)
            sequence = in_a_row.median * len(best)  # a call of it is three
            scope = contract.bind({**axes, "batch_size": batch, "num_slots": len(ring.states)})
            moved = contract.bytes_moved(scope, {"conv_bias"})
            print(f"{batch:5} {moved / 1e6:7.1f}M" + "".join(f"{us:8.2f}" for _, us, _ in best.values())
                  + f"{sequence:10.2f}  "
                  + "".join(f"{g.median:>23.2f}{mark:1}{sequence / g.median:6.2f}{moved / g.median / bandwidth:7.1%}"
                            for g, mark in zip(graphs, marks, strict=True))
                  + "   " + ", ".join(name for name, _, _ in best.values()), flush=True)  # fmt: skip
            if options.json:
                row = {
                    "batch": batch, "preset": options.preset, "bytes": moved, "copy": bandwidth, "sequence": sequence,
                    "pieces": {kind: [name, us] for kind, (name, us, _) in best.items()},
                    "solutions": {s.name: sorted(g.seen) for s, g in zip(solutions, graphs, strict=True)},
                }  # fmt: skip
                with options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            del ring, best, in_a_row, graphs
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
