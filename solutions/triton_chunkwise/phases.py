"""How long each of the two kernels takes alone, for every way to cut the work that `blocking` could choose.

    python solutions/triton_chunkwise/phases.py [--heads 16,32] [--lengths 8192,8192,8192,8192]

Microseconds, medians over replays of a CUDA graph of calls in which the other kernel is left out. What does not fit the
device says so; an output that differs from that of the chosen cut by more than 1% of its norm is marked with `!`. Needs
a CUDA GPU.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function

FOLDER, D, CALLS, REPLAYS = Path(__file__).resolve().parent, 128, 4, 9
PREPARE = [(warps, BD) for warps in (4, 8) for BD in (32, 64, 128)]
CHAIN = [(BV, warps, stages) for BV, warps in ((32, 4), (64, 4), (64, 8), (128, 8)) for stages in (2, 3, 4)]


class LeftOut:
    """In a kernel's place: launches nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **named: None


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
    chosen = module.blocking(D, len(lengths) * heads, torch.bfloat16)
    entry(**given)
    expected = given["output"].clone()
    print(f"{torch.cuda.get_device_name()}, heads {options.heads}, lengths {options.lengths}; chosen: {chosen}\n")
    for name, other, cuts in variants(chosen):
        print(f"{name}, {other} left out")
        found = []
        for cut in cuts:
            module.blocking = lambda *_, cut=cut: cut
            found.append((measured(module, other, lambda: entry(**given), given["output"], expected), cut))
        for (us, said), cut in sorted(found, key=lambda x: x[0][0]):
            print(f"{us:10.1f} {said:1} {cut}{'  <- chosen' if cut == chosen else ''}", flush=True)


def variants(chosen: Any) -> Iterator[tuple[str, str, list[Any]]]:
    """Kernel, the one that is left out, and the ways to cut."""
    ways = [chosen._replace(prepare_warps=warps, BD=BD) for warps, BD in PREPARE]
    yield "prepare_kernel", "chain_kernel", ways
    ways = [chosen._replace(BV=BV, chain_warps=warps, stages=stages) for BV, warps, stages in CHAIN]
    yield "chain_kernel", "prepare_kernel", ways


def measured(
    module: Any, other: str, call: Callable[[], object], output: torch.Tensor, expected: torch.Tensor
) -> tuple[float, str]:
    """Microseconds, infinitely many where it does not run, and a mark or the reason."""
    kept = getattr(module, other)
    try:
        output.fill_(torch.nan)
        call()
        apart = float((output.float() - expected.float()).norm() / expected.float().norm())
        setattr(module, other, LeftOut())
        return microseconds(call), "" if apart < 0.01 else "!"
    except Exception as error:  # too much shared memory, too many registers
        return math.inf, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    finally:
        setattr(module, other, kept)


if __name__ == "__main__":
    main()
