"""How long each pass takes alone, for the ways to cut the work that `blocking` could choose.

    python solutions/triton_chunkwise/phases.py [--heads 16,32] [--lengths 8192,8192,8192,8192]

Microseconds, medians over replays of a CUDA graph of calls in which the others are left out. What does not fit the
device says so; an output that differs from that of the chosen cut by more than 1% of its norm is marked with `!`. A
walk over sequences ("whole"), or over segments ("segments", "scan", "outputs"). Needs a CUDA GPU.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function

FOLDER, D, CALLS, REPLAYS = Path(__file__).resolve().parent, 128, 4, 9
PREPARE = [(4, 64), (4, 128)]
WALKS = [(BV, warps, stages) for BV, warps in ((32, 4), (64, 4), (128, 8)) for stages in (2, 3)]
SCANS = [(BV, 4, stages) for BV in (16, 32) for stages in (2, 3)]
KERNELS = {"prepare_kernel": "prepare", "scan_kernel": "scan", "chain_kernel": None}  # the last by its pass


class Only:
    """A kernel that launches nothing, or one of its passes alone."""

    def __init__(self, kernel: Any, name: str | None, wanted: str) -> None:
        self.kernel, self.name, self.wanted = kernel, name, wanted

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **named: Any) -> None:
            if (self.name or named["PASS"]) == self.wanted:
                self.kernel[grid](*arguments, **named)

        return launch


def arguments(q_heads: int, heads: int, lengths: list[int]) -> dict[str, Any]:
    total, count = sum(lengths), len(lengths)
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(total, q_heads, D), dim=-1).bfloat16() for _ in range(2))
    state = normal(count, heads, D, D)
    v = normal(total, heads, D).bfloat16()
    return {
        "q": q, "k": k, "v": v, "g": torch.exp(-0.1 * torch.rand(total, heads, device="cuda")),
        "beta": torch.rand(total, heads, device="cuda"),
        "cu_seqlens": torch.tensor([0, *lengths], device="cuda").cumsum(0), "initial_state": state, "scale": None,
        "output": torch.empty_like(v), "final_state": torch.empty_like(state),
    }  # fmt: skip


def microseconds(call: Callable[[], object]) -> float:
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    seen = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seen.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(seen[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="16,32", help="of q and k, of v")
    parser.add_argument("--lengths", default="8192", help="of the sequences")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("phases.py: needs a CUDA GPU")
    q_heads, heads = (int(x) for x in options.heads.split(","))
    lengths = [int(x) for x in options.lengths.split(",")]
    with tempfile.TemporaryDirectory() as build:
        entry = load_function(FOLDER, "kernel.py::prefill_k_last", Path(build))
    module: Any = sys.modules[entry.__module__]
    given = arguments(q_heads, heads, lengths)
    chosen = module.blocking(D, D, len(lengths), heads, sum(lengths), torch.bfloat16)
    entry(**given)
    expected = given["output"].clone()
    print(f"{torch.cuda.get_device_name()}, heads {options.heads}, lengths {options.lengths}; chosen: {chosen}\n")
    for name, cuts in variants(chosen, module.Walk).items():
        print(name)
        found = []
        for cut in cuts:
            module.blocking = lambda *_, cut=cut: cut
            found.append((measured(module, name, lambda: entry(**given), given["output"], expected), cut))
        for (us, said), cut in sorted(found, key=lambda x: x[0][0]):
            print(f"{us:10.1f} {said:1} {cut}{'  <- chosen' if cut == chosen else ''}", flush=True)


def variants(chosen: Any, walk: Any) -> dict[str, list[Any]]:
    """For each pass the ways to cut that matter to it."""
    ways = {"prepare": [chosen._replace(prepare_warps=warps, BD=BD) for warps, BD in PREPARE]}
    ways["whole"] = [chosen._replace(segment=0, outputs=walk(*x)) for x in WALKS]
    cut = chosen._replace(segment=8, outputs=walk(128, 8, 2), segments=walk(64, 4, 3), scan=walk(16, 4, 3))
    for name in ("segments", "outputs"):
        ways[name] = [cut._replace(segment=n, **{name: walk(*x)}) for x in WALKS if x[0] > 32 for n in (8, 16)]
    ways["scan"] = [cut._replace(segment=n, scan=walk(*x)) for x in SCANS for n in (8, 16)]
    return ways


def measured(
    module: Any, name: str, call: Callable[[], object], output: torch.Tensor, expected: torch.Tensor
) -> tuple[float, str]:
    """Microseconds, infinitely many where it does not run, and a mark or the reason."""
    kept = {kernel: getattr(module, kernel) for kernel in KERNELS}
    try:
        output.fill_(torch.nan)
        call()
        apart = float((output.float() - expected.float()).norm() / expected.float().norm())
        for kernel, alone in KERNELS.items():
            setattr(module, kernel, Only(kept[kernel], alone, name))
        return microseconds(call), "" if apart < 0.01 else f"! {apart:.3g}"
    except Exception as error:  # too much shared memory, too many registers
        return math.inf, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    finally:
        for kernel in kept:
            setattr(module, kernel, kept[kernel])


if __name__ == "__main__":
    main()
