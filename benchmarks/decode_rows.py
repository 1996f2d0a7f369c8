"""Decode beside a copy of its states, over the batches that a choice of waves may miss.

    python benchmarks/decode_rows.py [--solution cuda_decode] [--against flashinfer] [--rows TEXT,TEXT] [--json FILE]

One token a sequence, [V, K] states, dense or in a pool, float32 or bfloat16, heads 4/16 to 16/64. The batches are 1 to
40, those on either side of each multiple of the multiprocessors, and every seventh up to 300. The copy, and how calls
are timed, are those of decode_floor.py: microseconds in a graph of calls on states of their own.
"""

import argparse
import json
import math
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decode_floor import SHAPES, SLOTS, D, microseconds
from decode_shapes import Row, allowed, rows, summary
from gdnspec.build.loader import load_function
from gdnspec.catalog.solutions import load_variant
from prefill_rows import folder_of

HERE = Path(__file__).resolve().parent
OUTPUTS = ("output", "new_state")
Call = Callable[[], object]


class Ring:
    """The arguments of `count` calls, by the names and in the order of the definition, each on states of its own."""

    def __init__(self, row: Row) -> None:
        (hk, h), batch = row.heads, row.batch
        dtype = torch.bfloat16 if row.bf16 else torch.float32
        size = batch * h * D * D * dtype.itemsize
        count = max(6, min(256, math.ceil(3.3 * torch.cuda.get_device_properties(0).L2_cache_size / size)))
        normal = partial(torch.randn, device="cuda")
        slots_of_pool = min(SLOTS, (2**31 - 1) // (h * D * D))  # FlashInfer has int32 offsets
        states = normal(slots_of_pool if row.pool else count * batch, h, D, D).to(dtype)
        given: dict[str, Any] = {
            name: normal(batch, 1, heads, D).bfloat16() for name, heads in (("q", hk), ("k", hk), ("v", h))
        }
        gates = {
            "A_log": normal(h),
            "a": normal(batch, 1, h).bfloat16(),
            "dt_bias": normal(h).bfloat16(),
            "b": normal(batch, 1, h).bfloat16(),
        }
        gates |= {"scale": None, "use_qk_l2norm": None, "output": torch.empty_like(given["v"])}
        self.calls: list[dict[str, Any]] = []
        self.pool = row.pool
        for i in range(count):
            if row.pool:
                slots = torch.tensor(random.sample(range(slots_of_pool), batch), dtype=torch.int32, device="cuda")
                self.calls.append({**given, "pool": states, "read_slots": slots, "write_slots": slots, **gates})
            else:
                state = states[i * batch : (i + 1) * batch]
                self.calls.append({**given, "state": state, **gates, "new_state": torch.empty_like(state)})


def calls_of(name: str, among: str, row: Row, ring: Ring, build: Path) -> list[Call]:
    """A solution's calls, as the judge makes them."""
    folder = folder_of(name, among)
    solution = load_variant(folder, Path(name).name.partition(":")[2] or None)
    entry = solution.manifest.entries[row.definition]
    load = partial(load_function, folder, build_dir=build / folder.name, **solution.settings)
    call, prepare = load(entry.entry), load(entry.prepare) if entry.prepare else None
    if entry.entry.split("::")[0].endswith(".cu"):
        return [partial(call, *given.values()) for given in ring.calls]
    made: list[Call] = []
    for given in ring.calls:
        inputs = {key: x for key, x in given.items() if key not in OUTPUTS}
        out = {key: given[key] for key in OUTPUTS if key in given} if entry.call == "out" else {}
        made.append(partial(call, **inputs, **out, **({"prepared": prepare(**inputs)} if prepare else {})))
    return made


def copies(ring: Ring, floor: dict[str, Callable[..., object]], shape: int) -> list[Call]:
    if ring.pool:
        return [
            partial(floor["pool"], given["pool"], given["read_slots"], given["write_slots"][:, None], shape)
            for given in ring.calls
        ]
    return [partial(floor["dense"], given["state"], given["new_state"], shape) for given in ring.calls]


def measure(
    row: Row, options: argparse.Namespace, floor: dict[str, Callable[..., object]], build: Path
) -> dict[str, Any]:
    ring, peers = Ring(row), {}
    for name in filter(None, options.against.split(",")):
        try:
            peers[name] = microseconds(calls_of(name, "peers", row, ring, build))
        except Exception as error:  # a library may refuse a shape; the others go on
            print(f"{row.name}: {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
    us = microseconds(calls_of(options.solution, "solutions", row, ring, build))
    copy = min(microseconds(copies(ring, floor, shape)) for shape in range(SHAPES))
    return {**row._asdict(), "device": torch.cuda.get_device_name(), "us": us, "copy": copy, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solution", default="cuda_decode")
    parser.add_argument("--against", default="flashinfer")
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    parser.add_argument("--json", type=Path, help="append a line a row")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("decode_rows.py: needs a CUDA GPU")
    device = torch.cuda.get_device_properties(0)
    many, records = device.multi_processor_count, []
    asked = [row for row in rows(many) if any(text in row.name for text in options.rows.split(","))]
    print(f"{device.name}, {many} multiprocessors; microseconds; allowed: by the copy\n")
    print(f"{'':28}{'copy':>9}{'allowed':>9}{options.solution[-16:]:>17}  peers")
    with tempfile.TemporaryDirectory() as scratch:
        build = Path(scratch)
        floor = {name: load_function(HERE / "floor", f"kernel.cu::{name}", build) for name in ("dense", "pool")}
        for row in asked:
            found = measure(row, options, floor, build)
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
