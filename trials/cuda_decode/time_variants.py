"""All variants beside the present version, FlashInfer and the copy, in turns, in one process.

python time_variants.py build                    loads every variant, which builds it; several at once
python time_variants.py time FILE SECONDS        appends a line a row to FILE
python time_variants.py table FILE [FULL]        prints the tables; all of them to FULL

Run in the root of the tree; tools and benchmarks are on the path.
"""

import json
import math
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path.cwd()
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
POOL32, POOL16, DENSE32, DENSE16 = (True, False), (True, True), (False, False), (False, True)
KINDS = {POOL32: "pool float32", POOL16: "pool bfloat16", DENSE32: "dense float32", DENSE16: "dense bfloat16"}
# Which variants another kernel serves, by kind of states: from how many pairs, and to how many.
MANY = 10**9
OF_KIND = {
    POOL32: {"lanes16": (0, MANY), "small": (0, MANY), "meet": (0, MANY), "meet16": (0, MANY), "walk": (0, MANY),
             "walk_8k": (600, MANY), "walk_half": (600, MANY), "walk_near": (600, MANY)},
    POOL16: {"small": (0, MANY), "halves8": (0, MANY), "halves8s": (0, MANY)},
    DENSE32: {"small": (0, MANY), "few_4k": (132, 600), "few_32k": (132, 264), "few_64k": (132, 264),
              "before": (0, 1200), "triton_decode": (132, 520)},
    DENSE16: {"halves8": (0, MANY), "halves8s": (0, MANY), "before": (0, 1200)},
}  # fmt: skip
CLASSES = (131, 264, 528, 1200, 2047, 4095, 8447, MANY)
BIG = {32: (66, 83, 116, 128, 160, 196, 224, 245, 265, 280, 300), 48: (44, 66, 86, 110, 132, 154, 176, 200, 233, 266, 300),
       64: (33, 50, 64, 80, 97, 112, 132, 149, 165, 198, 231, 264, 300)}  # fmt: skip
BIG_DENSE = {32: (66, 128, 196, 265, 300), 48: (66, 110, 176, 233, 300), 64: (50, 80, 132, 198, 300)}
BESIDE = [(64, 264), (32, 245), (64, 97), (48, 266), (32, 300), (64, 198), (48, 200), (64, 165), (64, 132), (48, 233),
          (64, 300), (32, 280), (48, 176), (64, 149), (64, 231), (48, 300), (32, 265), (64, 112), (32, 196), (48, 132),
          (64, 80), (32, 160), (48, 110), (64, 64), (32, 224), (48, 154), (48, 86), (32, 128), (64, 50), (48, 66), (32, 83)]  # fmt: skip


def folder(name):
    if name == "present":
        return ROOT / "solutions/cuda_decode"
    if name in ("flashinfer",):
        return ROOT / "peers" / name
    return ROOT / "solutions" / name if name == "triton_decode" else HERE / "variants" / name / "cuda_decode"


def excluded():
    file = Path(os.environ.get("H39_EXCLUDED", "/nonexistent"))
    return set(file.read_text().split()) if file.is_file() else set()


def calls_of(name, row, ring):
    from decode_rows import OUTPUTS
    from gdnspec import paths
    from gdnspec.build.loader import load_function
    from gdnspec.catalog.solutions import load_variant

    solution = load_variant(folder(name), None)
    entry = solution.manifest.entries[row.definition]
    load = partial(load_function, folder(name), build_dir=paths.build_cache(solution.source_hash))
    call, prepare = load(entry.entry), load(entry.prepare) if entry.prepare else None
    if entry.entry.split("::")[0].endswith(".cu"):
        return [partial(call, *given.values()) for given in ring.calls]
    made = []
    for given in ring.calls:
        inputs = {key: x for key, x in given.items() if key not in OUTPUTS}
        out = {key: given[key] for key in OUTPUTS if key in given} if entry.call == "out" else {}
        made.append(partial(call, **inputs, **out, **({"prepared": prepare(**inputs)} if prepare else {})))
    return made


def build():
    from decode_shapes import Row
    from gdnspec.build.loader import load_function

    def one(name):
        begun = time.time()
        try:
            if name == "copy":
                load_function(ROOT / "benchmarks/floor", "kernel.cu::pool", build_dir=Path(os.environ["H39_FLOOR"]))
            else:
                calls_of(name, Row((16, 32), 1, True, False), type("Ring", (), {"calls": []}))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[-600:]}")
        print(f"{name}: {time.time() - begun:.0f} s", flush=True)

    # A process for each: the builder sets environment variables.
    if len(sys.argv) > 2:
        return one(sys.argv[2])
    import subprocess

    names = ["present", "copy", *sorted(x.name for x in (HERE / "variants").iterdir())]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: subprocess.run([sys.executable, __file__, "build", name]), names))


def what_it_leaves(call, given, row):
    """Output and new states of one call, and the pool as it was after it."""
    import torch

    if not row.pool:
        given["new_state"].fill_(math.nan)
        given["output"].fill_(math.nan)
        call()
        torch.cuda.synchronize()
        return given["output"].clone(), given["new_state"].clone()
    slots = given["read_slots"].long()
    kept = given["pool"][slots].clone()
    given["output"].fill_(math.nan)
    call()
    torch.cuda.synchronize()
    found = given["output"].clone(), given["pool"][slots].clone()
    given["pool"][slots] = kept
    return found


def apart(found, wanted):
    """Whether bits are the same; else the largest relative difference of a row's output or state."""
    import torch

    if all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(found, wanted)):
        return "same bits"
    worst = 0.0
    for x, y in zip(found, wanted):
        # by rows, to keep the memory small
        for a, b in zip(x, y):
            a, b = a.flatten().float(), b.flatten().float()
            ratio = float((a - b).norm() / b.norm())
            worst = max(worst, ratio if math.isfinite(ratio) else math.inf)
    return worst


def measure(row, names, memory, floor, checked, windows, phase):
    import torch
    from decode_ring import Ring, bytes_of, copies, in_turns

    ring = Ring(row, memory)
    subjects, wanted = {}, None
    key = (row.pool, row.bf16, row.heads, row.batch * row.heads[1] > 1200)
    limit = 1e-2 if row.bf16 else 5e-3
    for name in ["present", *names]:
        try:
            calls = calls_of(name, row, ring)
            if name not in ("flashinfer", "triton_decode") and (*key, name) not in checked and ring.calls and row.batch > 1:
                found = what_it_leaves(calls[0], ring.calls[0], row)
                wanted = found if name == "present" else wanted
                if name == "present" or wanted is None:
                    pass
                else:
                    said = apart(found, wanted)
                    print(f"{row.name}: {name} beside present: {said}", flush=True)
                    checked[(*key, name)] = said
                    if said != "same bits" and said > limit:
                        raise RuntimeError("wrong")
                del found
            calls[0]()
            torch.cuda.synchronize()
            subjects[name] = calls
        except Exception as error:
            print(f"{row.name}: {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            if name == "present":
                return None
    del wanted
    subjects["again"] = subjects["present"]  # the noise
    moved = copies(ring, floor)
    for calls in moved.values():
        calls[0]()
    us = in_turns(subjects | moved, ring.rounds, windows)
    copy = min(us[shape] for shape in moved)
    return {**row._asdict(), "pairs": row.batch * row.heads[1], "device": torch.cuda.get_device_name(), "phase": phase,
            "copy": copy, "us": {name: us[name] for name in subjects}}  # fmt: skip


def plan():
    """(phase, row, with FlashInfer): the most important first."""
    from decode_shapes import Row

    heads = ((16, 32), (16, 48), (16, 64))
    for bf16 in (False, True):
        for hk, h in heads:
            for batch in BIG[h][:: 1 if not bf16 else 2]:
                yield "big", Row((hk, h), batch, True, bf16), False
    first = [4, 5, 6, 7, 8, 9, 10, 12, 15]
    for batches in (first, [x for x in range(1, 41) if x not in first]):
        for hk, h in heads:
            for pool, bf16 in (DENSE32, DENSE16, POOL16, POOL32):
                for batch in batches:
                    if pool and batch % 2 and batch not in first:
                        continue
                    yield "small", Row((hk, h), batch, pool, bf16), False
        if batches is first:
            for h, batch in BESIDE[:12]:
                yield "flashinfer", Row((16, h), batch, True, False), True
    for hk, h in heads:
        for bf16 in (False, True):
            for batch in BIG_DENSE[h]:
                yield "big", Row((hk, h), batch, False, bf16), False
    for h, batch in BESIDE[12:]:
        yield "flashinfer", Row((16, h), batch, True, False), True


def timed():
    import torch
    from decode_ring import Memory
    from gdnspec.build.loader import load_function

    file, end = Path(sys.argv[2]), time.time() + float(sys.argv[3])
    out = excluded()
    rows = list(plan())
    memory = Memory([row for _, row, _ in rows])
    load = partial(load_function, ROOT / "benchmarks/floor", build_dir=Path(os.environ["H39_FLOOR"]))
    floor = {name: load(f"kernel.cu::{name}") for name in ("dense", "pool")}
    checked = {}
    print(f"{torch.cuda.get_device_name()}; left out: {sorted(out)}; {len(rows)} rows", flush=True)
    passed, begun = {}, time.time()
    for phase, row, beside in rows:
        if time.time() > end - 4:
            print(f"out of time at {phase} {row.name}", flush=True)
            break
        now, pairs = time.time(), row.batch * row.heads[1]
        names = [name for name, (low, high) in OF_KIND[row.pool, row.bf16].items() if low <= pairs <= high and name not in out]
        try:
            found = measure(row, names + ["flashinfer"] * beside, memory, floor, checked, 5 if phase == "small" else 9, phase)
        except Exception as error:
            print(f"{row.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if "CUDA error" in str(error) or isinstance(error, torch.AcceleratorError if hasattr(torch, "AcceleratorError") else ()):
                break
            continue
        if found is not None:
            with file.open("a") as to:
                to.write(json.dumps(found) + "\n")
        count, seconds = passed.get(phase, (0, 0.0))
        passed[phase] = count + 1, seconds + time.time() - now
    for phase, (count, seconds) in passed.items():
        print(f"{phase}: {count} rows, {seconds:.0f} s")
    print(f"{time.time() - begun:.0f} s in all", flush=True)


def mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def late(rows, name):
    """Of rows up to 1,200 pairs, how many take longer than is allowed beside the copy."""
    from decode_shapes import Row, allowed

    own = [(Row(tuple(x["heads"]), x["batch"], x["pool"], x["bf16"]), x) for x in rows if x["pairs"] <= 1200]
    count = sum(x["us"][name] > allowed(row, x["copy"], 132) for row, x in own)
    return f" +{count}" if count else ""


def table():
    records = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    lines = []
    print(records[0]["device"], len(records), "rows; time / present: geometric mean (worst row); +n: rows past the target; copy: share of its rate")
    for (pool, bf16), kind in KINDS.items():
        own = [x for x in records if (x["pool"], x["bf16"]) == (pool, bf16)]
        names = ["present", "again", *OF_KIND[pool, bf16], "flashinfer"]
        low = -1
        spans = []
        for high in CLASSES:
            spans.append((low + 1, high))
            low = high
        spans = [s for s in spans if any(s[0] <= x["pairs"] <= s[1] for x in own)]
        head = f"{kind:15}" + "".join(f"{('..' + str(b)) if b < MANY else str(a) + '..':>18}" for a, b in spans) + "  copy 8448.." + ("  FlashInfer / it (least; < 0.99)" if pool and not bf16 else "")
        lines.append(head)
        for name in names:
            cells, any_cell = [], False
            for a, b in spans:
                rows = [x for x in own if a <= x["pairs"] <= b and name in x["us"]]
                if not rows:
                    cells.append("-")
                    continue
                any_cell = True
                if name == "present":
                    cells.append(f"{len(rows)} {mean([x['us']['present'] / x['copy'] for x in rows]):.3f}c{late(rows, name)}")
                    continue
                ratios = [x["us"][name] / x["us"]["present"] for x in rows]
                cells.append(f"{mean(ratios):.3f} ({max(ratios):.3f}){late(rows, name)}")
            if not any_cell:
                continue
            top = [x for x in own if x["pairs"] >= 8448 and name in x["us"]]
            share = f"{100 * mean([x['copy'] / x['us'][name] for x in top]):11.2f}%" if top else ""
            ratios = [x["us"]["flashinfer"] / x["us"][name] for x in own if "flashinfer" in x["us"] and name in x["us"]]
            if ratios and name != "flashinfer":
                share += f"  {mean(ratios):.4f} ({min(ratios):.3f}; {sum(r < 0.99 for r in ratios)} of {len(ratios)})"
            lines.append(f"  {name:13}" + "".join(f"{cell:>18}" for cell in cells) + share)
    print(*lines, sep="\n")
    if len(sys.argv) > 3:
        with Path(sys.argv[3]).open("w") as to:
            print(*lines, sep="\n", file=to)
            for x in records:
                given = ", ".join(f"{name} {us:.2f}" for name, us in x["us"].items())
                print(f"{x['heads'][0]}/{x['heads'][1]} {KINDS[x['pool'], x['bf16']]} {x['batch']}: copy {x['copy']:.2f}, {given}", file=to)


if __name__ == "__main__":
    {"build": build, "time": timed, "table": table}[sys.argv[1]]()
