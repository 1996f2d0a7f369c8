"""Where the time of a chunk goes, as a state is advanced: the kernel writes down its clock at each step, this draws it.

    python solutions/hopper_prefill/clocks.py [--heads 16,32] [--tokens 4096] [--sequences 4] [--groups 2]
                                              [--head-size 128] [--svg FILE]

Cycles of block 0, medians over chunks 8 to 40, of the first and the last warp of each warpgroup. Needs an sm_90 GPU.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import torch
from gdnspec.build.loader import load_function
from rich.console import Console
from rich.table import Table

FOLDER, FROM, TO = Path(__file__).resolve().parent, 8, 40
STEPS = ("wait for v", "issue S Q^T", "scale S, S K^T", "X, issue T X", "T X", "update of S, P V'",
         "issue S K^T of the next, write O")  # fmt: skip


def arguments(q_heads: int, heads: int, lengths: list[int], D: int = 128) -> tuple[object, ...]:
    total, count = sum(lengths), len(lengths)
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(total, q_heads, D), dim=-1).bfloat16() for _ in range(2))
    v = normal(total, heads, D).bfloat16()
    gate, beta = torch.exp(-0.1 * torch.rand(total, heads, device="cuda")), torch.rand(total, heads, device="cuda")
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    state = normal(count, heads, D, D)
    return q, k, v, gate, beta, bounds, state, None, torch.empty_like(v), torch.empty_like(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="16,32", help="of q and k, of v")
    parser.add_argument("--tokens", type=int, default=4096, help="of a sequence")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--groups", type=int, choices=(1, 2), default=2, help="warpgroups that advance, of a block")
    parser.add_argument("--head-size", type=int, choices=(64, 128), default=128)
    parser.add_argument("--svg", type=Path, help="also draw it there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("clocks.py: needs a CUDA GPU")
    if options.tokens < TO * 64:
        raise SystemExit(f"clocks.py: --tokens is at least {TO * 64}")
    if options.head_size == 64:
        options.groups = 1  # all of a state
    q_heads, heads = (int(x) for x in options.heads.split(","))
    os.environ["GDN_GROUPS"] = str(options.groups)
    written = torch.zeros(2, 4, 64, 16, dtype=torch.int32, device="cuda")
    with tempfile.TemporaryDirectory() as build:
        load = lambda name: load_function(FOLDER, f"clocks.cu::{name}", Path(build))  # noqa: E731
        load("set_clocks")(written)
        given = arguments(q_heads, heads, [options.tokens] * options.sequences, options.head_size)
        for _ in range(2):
            load("gdn_prefill_k_last")(*given)
        torch.cuda.synchronize()
    clocks = written.cpu().to(torch.int64) & 0xFFFFFFFF
    console = Console(record=True, width=110)
    for group in range(options.groups):
        for warp in (0, 3):
            stamps = clocks[group, warp, FROM:TO]
            chunk = statistics.median((stamps[1:, 0] - stamps[:-1, 0]).tolist())
            table = Table(title=f"warp {warp} of slice {group}: {chunk:.0f} cycles a chunk", title_justify="left")
            for name in ("step", "cycles", ""):
                table.add_column(name, justify="right" if name == "cycles" else "left")
            ends = torch.cat([stamps[:-1, 1 : len(STEPS)], stamps[1:, :1]], dim=1)  # the last: where the next begins
            for i, name in enumerate(STEPS):
                cycles = statistics.median((ends[:, i] - stamps[:-1, i]).tolist())
                table.add_row(name, f"{cycles:.0f}", "█" * round(50 * cycles / chunk))
            console.print(table)
    if options.svg:
        console.save_svg(str(options.svg), title="cycles of a chunk")


if __name__ == "__main__":
    main()
