"""Compiles FlashQLA's kernels for the rows of backward_rows.py and training_rows.py, each in a process of its own.

    python benchmarks/flash_qla_kernels.py --jobs 16 [--rows TEXT,TEXT]

TileLang compiles a kernel when Python first asks for it, for one number of heads, in one thread: up to a minute each,
and 91 kernels for all rows. So this script first runs FlashQLA's Python with kernels that do nothing, and notes what it
asks for. Then it compiles that side by side, the slowest first. TileLang keeps what it has compiled in
$TILELANG_CACHE_DIR; what is there is not compiled again. No GPU is needed: a Hopper GPU is pretended.
"""

import argparse
import importlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from backward_rows import INSTALL, PEERS, FlashQLA
from prefill_shapes import Row, chosen
from training_rows import ROWS

# The kernels that take longest to compile, in this order.
SLOWEST = ("fused_chunk_gdr_bwd", "prepare_dh", "fused_chunk_gdr_fwd", "prepare_h", "correct", "kkt")
CHUNK_MODULE = "flash_qla.ops.gated_delta_rule.chunk"


class Kernel(NamedTuple):
    """A kernel as FlashQLA asks TileLang for it. Its arguments are numbers, texts and types."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def compile(self) -> None:
        importlib.import_module(CHUNK_MODULE)
        getattr(importlib.import_module(self.module), self.function)(*self.arguments, **self.named)


def pretend_a_gpu() -> None:
    """TileLang and FlashQLA only ask what there is, until a kernel is called."""
    properties = SimpleNamespace(
        multi_processor_count=132, major=9, minor=0, name="NVIDIA H200", gcnArchName="",
        shared_memory_per_block_optin=232448, total_memory=143 << 30,
    )  # fmt: skip
    answers = {
        "is_available": True, "get_device_capability": (9, 0), "get_device_properties": properties, "device_count": 1,
        "current_device": 0, "is_current_stream_capturing": False, "get_device_name": properties.name,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    import tilelang

    tilelang.contrib.nvcc.get_target_compute_version = lambda target=None: "9.0"


def asked_for(rows: Iterable[Row]) -> list[Kernel]:
    """What the forward and the backward pass ask for, with FlashQLA's split of sequences and without it."""
    from tilelang.jit import JITImpl

    found: dict[str, Kernel] = {}

    def note(self: Any, *arguments: Any, **named: Any) -> Any:
        function = self.func.orig_func
        kernel = Kernel(function.__module__, function.__name__, arguments, named)
        found.setdefault(repr(kernel), kernel)
        return lambda *_, **__: None

    compiling = JITImpl.__call__
    JITImpl.__call__ = note
    try:
        for row in rows:
            for peer in PEERS:
                run_both_passes(row, peer)
    finally:
        JITImpl.__call__ = compiling
    slowest = {text: place for place, text in enumerate(SLOWEST)}
    place = lambda kernel: min((p for text, p in slowest.items() if text in kernel.function), default=len(SLOWEST))  # noqa: E731
    return sorted(found.values(), key=place)


def run_both_passes(row: Row, peer: str) -> None:
    """On a CPU, as backward_rows.py calls them. The kernels that are called do nothing."""
    (hk, h), size, total, count = row.heads, row.head_size, sum(row.lengths), len(row.lengths)
    q, k = (torch.empty(total, hk, size, dtype=torch.bfloat16) for _ in range(2))
    v, do = (torch.empty(total, h, size, dtype=torch.bfloat16) for _ in range(2))
    g, beta = (torch.empty(total, h) for _ in range(2))
    state, dht = (torch.empty(count, h, size, size) for _ in range(2))
    starts = torch.tensor([0, *row.lengths]).cumsum(0)
    given = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "cu_seqlens": starts, "initial_state": state, "do": do,
             "dht": dht}  # fmt: skip
    forward, backward = FlashQLA(peer).passes(given)
    backward(forward())


def compile_apart(kernel: Kernel) -> bool:
    begin = time.monotonic()
    script = [sys.executable, __file__, "--one"]
    done = subprocess.run(script, input=pickle.dumps(kernel), check=False, capture_output=True)
    said = (
        f"{time.monotonic() - begin:.0f} s"
        if done.returncode == 0
        else f"failed: {done.stderr.decode().strip()[-300:]}"
    )
    print(f"{kernel.function}{kernel.arguments}: {said}", flush=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    parser.add_argument("--rows", default=ROWS, help="only rows whose name or group has one of these texts")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        pretend_a_gpu()
    except ModuleNotFoundError:
        sys.exit(f"FlashQLA is not installed: {INSTALL}")
    if options.one:
        kernel: Kernel = pickle.load(sys.stdin.buffer)  # what this script has sent
        kernel.compile()
        return
    begin, kernels = time.monotonic(), asked_for(chosen(options.rows))
    print(f"{len(kernels)} kernels", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        good = sum(pool.map(compile_apart, kernels))
    print(f"{good} of {len(kernels)} kernels compiled in {time.monotonic() - begin:.0f} s")
    sys.exit(good < len(kernels))


if __name__ == "__main__":
    main()
