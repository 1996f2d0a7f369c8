"""Decode beside a copy of its states, over the batches that a choice of waves may miss.

    python benchmarks/decode_rows.py [--solution cuda_decode] [--against flashinfer] [--rows TEXT,TEXT] [--build DIR]
                                     [--json FILE]

One token a sequence, [V, K] states, dense or in a pool, float32 or bfloat16, heads 4/16 to 16/64. The batches are 1 to
40, those on either side of each multiple of the multiprocessors, and every seventh up to 300. The copy is that of
decode_floor.py. It, the solution and the peers take turns in one process: microseconds in graphs of calls, each on
states and tokens of its own.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decode_ring import Call, Memory, Ring, copies, in_turns
from decode_shapes import Row, allowed, rows, summary
from gdnspec.build.loader import load_function
from gdnspec.catalog.solutions import load_variant
from prefill_rows import folder_of
from prefill_shapes import build_of
from row_files import made_with, refuse, said_with

HERE = Path(__file__).resolve().parent
FEW = 1200  # pairs: past these a wave is a small part of a call
OUTPUTS = ("output", "new_state")


def calls_of(name: str, among: str, row: Row, ring: Ring, build: Path) -> list[Call]:
    """A solution's calls, as the judge makes them."""
    folder = folder_of(name, among)
    solution = load_variant(folder, Path(name).name.partition(":")[2] or None)
    entry = solution.manifest.entries[row.definition]
    load = partial(load_function, folder, build_dir=build_of(build, folder, name), **solution.settings)
    call, prepare = load(entry.entry), load(entry.prepare) if entry.prepare else None
    if entry.entry.split("::")[0].endswith(".cu"):
        return [partial(call, *given.values()) for given in ring.calls]
    made: list[Call] = []
    for given in ring.calls:
        inputs = {key: x for key, x in given.items() if key not in OUTPUTS}
        out = {key: given[key] for key in OUTPUTS if key in given} if entry.call == "out" else {}
        made.append(partial(call, **inputs, **out, **({"prepared": prepare(**inputs)} if prepare else {})))
    return made


def measure(
    row: Row, options: argparse.Namespace, floor: dict[str, Callable[..., object]], build: Path, memory: Memory
) -> dict[str, Any]:
    ring, mine, peers = Ring(row, memory), options.solution, [*filter(None, options.against.split(","))]
    subjects: dict[str, list[Call]] = {}
    for name in [mine, *peers]:
        try:
            calls = calls_of(name, "solutions" if name == mine else "peers", row, ring, build)
            calls[0]()
            subjects[name] = calls
        except Exception as error:  # a library may refuse a shape; the others go on
            if name == mine:
                raise
            print(f"{row.name}: {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
    moved = copies(ring, floor)
    for calls in moved.values():
        calls[0]()
    us = in_turns(subjects | moved, ring.rounds)
    copy = min(us[shape] for shape in moved)
    found = {name: us[name] for name in peers if name in us}
    return {**row._asdict(), "device": torch.cuda.get_device_name(), "us": us[mine], "copy": copy, "peers": found,
            **made_with()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solution", default="cuda_decode")
    parser.add_argument("--against", default="flashinfer")
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    parser.add_argument("--every", type=int, default=1, help="past 1,200 (row, head) pairs, only one row in so many")
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    parser.add_argument("--json", type=Path, help="append a line a row")
    options = parser.parse_args()
    peers = [folder_of(name, "peers") for name in options.against.split(",") if name]
    refuse(parser, options, [folder_of(options.solution, "solutions"), *peers])
    if not torch.cuda.is_available():
        raise SystemExit("decode_rows.py: needs a CUDA GPU")
    device = torch.cuda.get_device_properties(0)
    many, records = device.multi_processor_count, []
    asked = [row for row in rows(many) if any(text in row.name for text in options.rows.split(","))]
    asked = [row for n, row in enumerate(asked) if row.batch * row.heads[1] <= FEW or n % options.every == 0]
    print(f"{device.name}, {many} multiprocessors; microseconds; allowed: by the copy\n{said_with(made_with())}\n")
    print(f"{'':28}{'copy':>9}{'allowed':>9}{options.solution[-16:]:>17}  peers")
    with tempfile.TemporaryDirectory() as scratch:
        build = options.build or Path(scratch)
        copying = partial(load_function, HERE / "floor", build_dir=build / "floor")
        floor = {name: copying(f"kernel.cu::{name}") for name in ("dense", "pool")}
        memory = Memory(asked)
        for row in asked:
            found = measure(row, options, floor, build, memory)
            records.append(found)
            others = ", ".join(f"{name} {us:.2f}" for name, us in found["peers"].items())
            limit = allowed(row, found["copy"], many)
            print(f"{row.name:28}{found['copy']:9.2f}{limit:9.2f}{found['us']:17.2f}  {others}", flush=True)
            if options.json:
                with options.json.open("a") as to:
                    to.write(json.dumps(found) + "\n")
    print("", *summary(records, many), sep="\n")


if __name__ == "__main__":
    main()
