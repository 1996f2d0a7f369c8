"""From the projections to the rule's output: one fused pass and hopper_prefill, beside what others need in sequence.

    python benchmarks/conv_prefill.py [--solution fused_conv_prefill] [--against flashinfer,fla,flash_qla] [--rows TEXT]

`--solution` may be given several times, to have variants side by side; a name with a slash is a folder elsewhere.

First each solution alone, and how much of the bandwidth of a large copy it has. Then, each in one graph, solution and
hopper_prefill, against convolution, norms, gates and prefill in sequence: of every way to make q, k, v and gates, and
of every library's prefill, the fastest. Microseconds, medians of replayed graphs of calls on buffers of more than three
times the L2 cache, in turns; what cannot be captured is timed eagerly and marked with `*`. What differs by more than 2%
of the output's norm is marked with `!`.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from gdnspec.catalog.solutions import load_solution
from torch import Tensor

HERE = Path(__file__).resolve().parent
CONV_GATES, D, W, WINDOWS = "gdn_conv_gates_prefill", 128, 4, 7
HEADS = ((16, 32), (4, 8))
RAGGED = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)
LENGTHS = {
    "1x2048": (2048,), "1x8192": (8192,), "4x2048": (2048,) * 4, "1x32768": (32768,), "ragged16": RAGGED,
}  # fmt: skip
BF16 = torch.bfloat16
Call = Callable[[], Any]
Prefill = Callable[..., tuple[Tensor, Any]]


@dataclass
class Buffers:
    """Of one call: what the projections give, what goes on to the rule, what the rule leaves."""

    heads: tuple[int, int]
    lengths: tuple[int, ...]
    inputs: dict[str, Any] = field(init=False)
    qkvgb: dict[str, Tensor] = field(init=False)
    rule: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        (HK, H), T, N = self.heads, sum(self.lengths), len(self.lengths)
        C, normal = (2 * HK + H) * D, lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)
        empty = lambda *shape, dtype=BF16: torch.empty(shape, device="cuda", dtype=dtype)  # noqa: E731
        bounds = torch.tensor([0, *self.lengths], device="cuda").cumsum(0)
        self.inputs = {
            "x": normal(T, C), "conv_weight": normal(C, W) * W**-0.5, "conv_bias": None, "a": normal(T, H),
            "b": normal(T, H), "A_log": torch.rand(H, device="cuda") * 2 - 4, "dt_bias": normal(H),
            "cu_seqlens": bounds,
            "conv_states": torch.zeros(N, C, W - 1, device="cuda", dtype=BF16),
            "slots": torch.arange(N, device="cuda", dtype=torch.int32),
            "has_initial_state": torch.zeros(N, device="cuda", dtype=torch.bool), "head_dim": D,
        }  # fmt: skip
        self.qkvgb = {"q": empty(T, HK, D), "k": empty(T, HK, D), "v": empty(T, H, D)}
        self.qkvgb |= {name: empty(T, H, dtype=torch.float32) for name in ("g", "beta")}
        states = torch.zeros(N, H, D, D, device="cuda")
        out = {"output": empty(T, H, D), "final_state": torch.empty_like(states)}
        self.rule = {"cu_seqlens": bounds, "initial_state": states, "scale": None, **out}

    @property
    def bytes(self) -> int:
        """Read and written by the fused pass."""
        tensors = [self.inputs[name] for name in ("x", "a", "b")]
        return sum(x.nbytes for x in (*tensors, *self.qkvgb.values()))


# --- timing -----------------------------------------------------------------------------------------------------


class Timed:
    """One way to do it, a call for each set of buffers, in a graph where it can be captured."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls, self.seen = calls, list[float]()
        for call in calls * 2:
            call()
        torch.cuda.synchronize()
        self.graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph):
                self.run()
        except RuntimeError:  # it waits for the device
            self.graph = None
            torch.cuda.synchronize()

    def run(self) -> None:
        for call in self.calls:
            call()

    def window(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.run() if self.graph is None else self.graph.replay()
        end.record()
        end.synchronize()
        self.seen.append(start.elapsed_time(end) * 1e3 / len(self.calls))

    @property
    def us(self) -> float:
        return statistics.median(self.seen[1:])

    @property
    def mark(self) -> str:
        return "" if self.graph else "*"


def timed(ways: dict[str, list[Call]]) -> dict[str, Timed]:
    """All of them in turns; one that a library refuses is left out, and said."""
    found = {}
    for name, calls in ways.items():
        try:
            found[name] = Timed(calls)
        except Exception as error:
            print(f"  {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
            torch.cuda.synchronize()
    for _ in range(1 + WINDOWS):
        for one in found.values():
            one.window()
    return found


def fastest(of: dict[str, Timed]) -> str:
    return min(of, key=lambda name: of[name].us)


# --- in sequence ------------------------------------------------------------------------------------------------


@contextmanager
def optional(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a library may fail as it is imported, by the version of another one
        print(f"{what} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")


def parts(x: Tensor, heads: tuple[int, int]) -> tuple[Tensor, ...]:
    HK, H = heads
    return x.split([HK * D, HK * D, H * D], dim=1)


def fronts(build: Path) -> dict[str, Callable[[Buffers, Any], Any]]:
    """Ways to q, k, v, log alpha and beta, a kernel after the other: of two convolutions, with FLA's norm and gate
    where it is there, else PyTorch's."""
    conv1d = load_function(HERE.parent / "solutions/triton_layer", "conv1d.py::conv1d_prefill", build)

    def norm(x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1e-6)).to(BF16)

    def gate(a: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
        return -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())

    conv = None
    with optional("FLA, whose convolution, norm and gate stand for others'"):
        from fla.modules.causal_conv1d import causal_conv1d as conv
        from fla.modules.norm.l2norm import l2norm_fwd
        from fla.ops.gated_delta_rule.gate import gdn_gate_fwd as gate  # type: ignore[no-redef]

        norm = lambda x: l2norm_fwd(x)[0]  # type: ignore[assignment]  # noqa: E731

    def finished(on: Buffers, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        given = on.inputs
        q, k, v = (x.reshape(len(x), -1, D) for x in (q, k, v))  # a copy, where rows are wider
        log_g, beta = gate(given["a"], given["A_log"], given["dt_bias"]), given["b"].float().sigmoid_()
        return norm(q), norm(k), v, log_g, beta

    def by_triton_layer(on: Buffers, _: Any) -> tuple[Tensor, ...]:
        given, rows = on.inputs, torch.empty_like(on.inputs["x"])
        states = [given[name] for name in ("cu_seqlens", "conv_states", "slots", "has_initial_state")]
        conv1d(given["x"], given["conv_weight"], None, *states, rows)
        return finished(on, *(x.contiguous() for x in parts(rows, on.heads)))

    def by_fla(on: Buffers, chunks: Any) -> tuple[Tensor, ...]:
        """A convolution each of q, k and v, which reads rows of any stride and leaves nothing to copy."""
        weights = on.inputs["conv_weight"].split([x.shape[1] for x in parts(on.inputs["x"], on.heads)])
        more = {"activation": "silu", "output_final_state": True, "cu_seqlens": on.inputs["cu_seqlens"]}
        each = zip(parts(on.inputs["x"], on.heads), weights, strict=True)
        return finished(on, *(conv(x[None], w, chunk_indices=chunks, **more)[0][0] for x, w in each))

    return {"triton_layer": by_triton_layer, **({"fla": by_fla} if conv else {})}


def peers(names: list[str], build: Path) -> dict[str, Callable[[Buffers], tuple[bool, Prefill]]]:
    """Each library's prefill: whether it takes alpha itself, and a function of q, k, v, gate and beta."""
    found: dict[str, Callable[[Buffers], tuple[bool, Prefill]]] = {}
    for name in names:
        folder = HERE.parent / "peers" / name
        with optional(name):
            entry = "prefill_k_last" if name == "flashinfer" else "_prefill"
            call, prepare = (load_function(folder, f"kernel.py::{one}", build) for one in (entry, "prepare_prefill"))

            def bound(on: Buffers, name: str = name, call: Any = call, prepare: Any = prepare) -> tuple[bool, Prefill]:
                rule = on.rule
                prepared = prepare(v=rule["output"], cu_seqlens=rule["cu_seqlens"])  # v: of the output's shape
                same = {one: rule[one] for one in ("initial_state", "scale")} | {"prepared": prepared}
                if name == "flashinfer":
                    out = {one: rule[one] for one in ("output", "final_state")}
                    return True, lambda *qkvgb: call(*qkvgb, rule["cu_seqlens"], **same, **out) or tuple(out.values())
                return False, lambda *qkvgb: call(*qkvgb, v_first=True, **same)

            found[name] = bound
    return found


def in_sequence(front: Any, chunks: Any, linear: bool, prefill: Prefill, on: Buffers) -> Call:
    def call() -> Tensor:
        q, k, v, log_g, beta = front(on, chunks)
        return prefill(q, k, v, log_g.exp_() if linear else log_g, beta)[0]

    return call


# --- a row ------------------------------------------------------------------------------------------------------


class Row:
    def __init__(self, heads: tuple[int, int], lengths: tuple[int, ...]) -> None:
        first = Buffers(heads, lengths)
        ring = 3 * torch.cuda.get_device_properties(0).L2_cache_size
        self.sets = [first, *(Buffers(heads, lengths) for _ in range(max(1, math.ceil(ring / first.bytes) - 1)))]

    def alone(self, solutions: dict[str, Any]) -> dict[str, Timed]:
        """Each solution."""
        return timed({
            name: [lambda on=on, run=run: run(*on.inputs.values(), *on.qkvgb.values()) for on in self.sets]  # type: ignore[misc]
            for name, run in solutions.items()
        })  # fmt: skip

    def fused(self, run: Any, hopper: Any) -> list[Call]:
        def call(on: Buffers) -> Tensor:
            run(*on.inputs.values(), *on.qkvgb.values())
            hopper(*on.qkvgb.values(), *on.rule.values())
            return on.rule["output"]  # type: ignore[no-any-return]

        return [lambda on=on: call(on) for on in self.sets]  # type: ignore[misc]

    def sequence(self, ways: dict[str, Any], others: dict[str, Any]) -> tuple[str, list[Call]]:
        """The fastest front and the fastest prefill, each by itself, then one after the other."""
        from_chunks = [chunks_of(on) for on in self.sets]
        each: dict[str, list[Call]] = {
            name: [lambda on=on, c=c, f=f: f(on, c) for on, c in zip(self.sets, from_chunks, strict=True)]  # type: ignore[misc]
            for name, f in ways.items()
        }
        front = fastest(timed(each))
        made = [ways[front](on, c) for on, c in zip(self.sets, from_chunks, strict=True)]
        prefills: dict[str, list[Call]] = {name: [] for name in others}
        for name, bound in others.items():
            for on, (q, k, v, log_g, beta) in zip(self.sets, made, strict=True):
                linear, run = bound(on)
                given = (q, k, v, log_g.exp() if linear else log_g, beta)
                prefills[name].append(lambda run=run, given=given: run(*given))  # type: ignore[misc]
        best = fastest(timed(prefills))
        del made, prefills
        together = []
        for on, chunks in zip(self.sets, from_chunks, strict=True):
            linear, run = others[best](on)
            together.append(in_sequence(ways[front], chunks, linear, run, on))
        return f"{front} + {best}", together


def chunks_of(on: Buffers) -> Tensor | None:
    """Which chunk is of which sequence, as FLA wants it; found once, outside of what is timed."""
    try:
        from fla.ops.utils.index import prepare_chunk_indices
    except ImportError:
        return None
    return prepare_chunk_indices(on.inputs["cu_seqlens"], 64)  # type: ignore[no-any-return]


def solutions_of(names: list[str], build: Path) -> dict[str, Any]:
    found = {}
    for i, name in enumerate(names):
        folder = Path(name) if "/" in name else HERE.parent / "solutions" / name
        entry = load_solution(folder).manifest.entries[CONV_GATES]
        assert entry.call == "out", f"{name} returns its outputs: this benchmark takes who writes to them"
        title = name if "/" not in name else "/".join(folder.parts[-2:])
        found[title] = load_function(folder, entry.entry, build / str(i))
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solution", action="append", help="fused_conv_prefill where none is given")
    parser.add_argument("--against", default="flashinfer,fla,flash_qla")
    parser.add_argument("--rows", default="", help="only those with this in their name")
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("conv_prefill.py: needs a CUDA GPU")
    began, ratios, shares = time.monotonic(), dict[str, list[float]](), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as scratch:
        build = options.build or Path(scratch)
        solutions = solutions_of(options.solution or ["fused_conv_prefill"], build)
        folder = HERE.parent / "solutions/hopper_prefill"
        hopper = load_function(folder, "kernel.cu::gdn_prefill_k_last", build / "hopper")
        ways, others = fronts(build), peers([x for x in options.against.split(",") if x], build)
        bandwidth = copy_bandwidth()
        built = f"built in {time.monotonic() - began:.0f} s"
        print(f"{torch.cuda.get_device_name()}, a copy: {bandwidth / 1e12:.2f} TB/s; {built}\n")
        print(f"{'':16}{'solution':28}{'alone':>8}{'of copy':>9}{'+ hopper':>10}{'others':>10}{'others / this':>15}")
        for heads in HEADS:
            for name, lengths in LENGTHS.items():
                title = f"{heads[0]}/{heads[1]} {name}"
                if options.rows not in title:
                    continue
                row = Row(heads, lengths)
                alone = row.alone(solutions)
                both = {one: row.fused(run, hopper) for one, run in solutions.items() if one in alone}
                label, calls = row.sequence(ways, others) if others else ("", [])
                together = timed(both | ({"others": calls} if calls else {}))
                for one in both:
                    ours, theirs, mark = together[one], together.get("others"), ""
                    if theirs is not None:
                        got, want = both[one][0]().float().clone(), calls[0]().float()
                        mark = "" if float((got - want).norm() / want.norm()) < 0.02 else "!"
                        ratios.setdefault(one, []).append(theirs.us / ours.us)
                    shares.setdefault(one, []).append(row.sets[0].bytes / (alone[one].us * 1e-6) / bandwidth)
                    line = f"{title:16}{one:28}{alone[one].us:8.1f}{shares[one][-1]:9.0%}{ours.us:10.1f}"
                    if theirs is not None:
                        line += f"{theirs.us:9.1f}{theirs.mark or ' '}{ratios[one][-1]:14.2f}{mark or ' '}  {label}"
                    print(line, flush=True)
                del row, alone, both, calls, together
                torch.cuda.empty_cache()
    for one, each in shares.items():
        against = f"{statistics.geometric_mean(ratios[one]):.2f} times as fast as others" if one in ratios else ""
        print(
            f"\n{one}: {against or 'no library to compare with'}, {statistics.geometric_mean(each):.0%} of a copy",
            end="",
        )
    print(f"; geometric means, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
