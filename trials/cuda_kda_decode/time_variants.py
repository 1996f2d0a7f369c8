"""cuda_kda_decode: variants beside the present version and the fastest of five copies, in turns, in one process.

python time_variants.py build [NAME]             loads each variant, which builds it; a process for each
python time_variants.py time FILE SECONDS        appends a line of JSON a row to FILE
python time_variants.py table FILE               prints the table

Run in the root of the tree.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

HERE, ROOT, D = Path(__file__).resolve().parent, Path.cwd(), 128
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
NAMES = ["two_warps", "early_slots", "matrix", "matrix_early"]
DENSE16, POOL16, POOL32 = (False, True), (True, True), (True, False)  # (pool, bfloat16)
KINDS = {DENSE16: "dense bfloat16", POOL16: "pool bfloat16", POOL32: "pool float32"}
# early_slots changes pools alone, and is the only one that changes float32 states.
OF_KIND = {DENSE16: ["two_warps", "matrix", "matrix_early"], POOL16: NAMES, POOL32: ["early_slots"]}
SAME_BITS = {"two_warps", "early_slots"}
BATCHES = {32: (64, 96, 128, 192, 256, 16, 32, 4, 1), 64: (64, 128, 256)}
WINDOWS = 11


def folder(name):
    return ROOT / "solutions/cuda_kda_decode" if name == "present" else HERE / "variants" / name / "cuda_kda_decode"


def function(name, pool, bf16):
    from gdnspec import paths
    from gdnspec.build.loader import load_function
    from gdnspec.catalog.solutions import load_variant

    solution = load_variant(folder(name), None)
    entry = solution.manifest.entries[f"kda_decode_{'pool_' if pool else ''}k_last{'_bf16_state' if bf16 else ''}"]
    return load_function(folder(name), entry.entry, build_dir=paths.build_cache(solution.source_hash))


def floor():
    from gdnspec.build.loader import load_function

    build = Path(os.environ["KD_FLOOR"])
    return {n: load_function(ROOT / "benchmarks/floor", f"kernel.cu::{n}", build_dir=build) for n in ("dense", "pool")}


def build():
    if len(sys.argv) > 2:
        begun, name = time.time(), sys.argv[2]
        try:
            floor() if name == "copy" else function(name, False, True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[-600:]}")
        print(f"{name}: {time.time() - begun:.0f} s", flush=True)
        return
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: subprocess.run([sys.executable, __file__, "build", name]), ["present", "copy", *NAMES]))


class Ring:
    """As of decode_ring.py, with the gates of Kimi Delta Attention."""

    def __init__(self, row, memory):
        import torch
        from decode_ring import RATE, WINDOW, bytes_of, calls_in, elements

        h, batch, count = row.heads[1], row.batch, calls_in(row)
        self.pool, self.calls = row.pool, []
        self.rounds = math.ceil(WINDOW / (count * (1 + 2 * bytes_of(row) / RATE)))
        states = memory.of(row)[: elements(row)].view(-1, h, D, D)
        normal = partial(torch.randn, device="cuda")
        q, k, v, a = (normal(count, batch, 1, h, D).bfloat16() for _ in range(4))
        b = normal(count, batch, 1, h).bfloat16()
        A_log, dt_bias, output = normal(h), normal(h, D), torch.empty_like(v)
        for i in range(count):
            gates = {"A_log": A_log, "a": a[i], "dt_bias": dt_bias, "b": b[i], "lower_bound": None, "scale": None, "use_qk_l2norm": None}
            given = {"q": q[i], "k": k[i], "v": v[i]}
            if row.pool:
                named = random.sample(range(len(states)), batch)
                read, write = (torch.tensor(named, dtype=torch.int32, device="cuda") for _ in range(2))
                given |= {"pool": states, "read_slots": read, "write_slots": write, **gates, "output": output[i]}
            else:
                read, write = (states[n * batch : (n + 1) * batch] for n in (2 * i, 2 * i + 1))
                given |= {"state": read, **gates, "output": output[i], "new_state": write}
            self.calls.append(given)


def left_by(call, given, pool):
    """Output and new states of one call; a pool is put back as it was."""
    import torch

    given["output"].fill_(math.nan)
    if not pool:
        given["new_state"].fill_(math.nan)
        call(*given.values())
        return given["output"].clone(), given["new_state"].clone()
    slots = given["read_slots"].long()
    kept = given["pool"][slots].clone()
    call(*given.values())
    torch.cuda.synchronize()
    found = given["output"].clone(), given["pool"][slots].clone()
    given["pool"][slots] = kept
    return found


def apart(found, wanted):
    import torch

    if all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(found, wanted)):
        return "same bits"
    worst = 0.0
    for x, y in zip(found, wanted):
        for a, b in zip(x, y):  # by rows, to keep the memory small
            ratio = float((a.float() - b.float()).norm() / b.float().norm())
            worst = max(worst, ratio if math.isfinite(ratio) else math.inf)
    return worst


def timed():
    import torch
    from decode_ring import Memory, copies, in_turns
    from decode_shapes import Row

    file, end = Path(sys.argv[2]), time.time() + float(sys.argv[3])
    out = set(Path(os.environ["KD_EXCLUDED"]).read_text().split()) if Path(os.environ["KD_EXCLUDED"]).is_file() else set()
    copy_of = floor()
    rows = [Row((h, h), batch, *kind) for h in BATCHES for batch in BATCHES[h] for kind in KINDS]
    memory = Memory(rows)
    calls, wrong = {}, set()
    for kind in KINDS:
        for name in ["present", *OF_KIND[kind]]:
            try:
                if name not in out:
                    calls[kind, name] = function(name, *kind)
            except Exception as error:
                print(f"{KINDS[kind]}: {name} is left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(f"{torch.cuda.get_device_name()}; left out: {sorted(out)}; {len(rows)} rows", flush=True)
    begun = time.time()
    for row in rows:
        if time.time() > end - 2:
            print(f"out of time at {row.name}")
            break
        kind = row.pool, row.bf16
        try:
            ring = Ring(row, memory)
            names = [name for name in ["present", *OF_KIND[kind]] if (kind, name) in calls and (kind, name) not in wrong]
            if row.batch in (64, 4) and row.heads[1] == 32:
                wanted = left_by(calls[kind, "present"], ring.calls[0], row.pool)
                for name in names[1:]:
                    said = apart(left_by(calls[kind, name], ring.calls[0], row.pool), wanted)
                    print(f"{row.name}: {name} beside present: {said if isinstance(said, str) else format(said, '.1e')}", flush=True)
                    if said != "same bits" and (name in SAME_BITS or said > 1e-2):
                        print(f"{row.name}: {name} is WRONG", flush=True)
                        wrong.add((kind, name))
                names = [name for name in names if (kind, name) not in wrong]
            subjects = {name: [partial(calls[kind, name], *x.values()) for x in ring.calls] for name in names}
            subjects["again"] = subjects["present"]  # the noise
            moved = copies(ring, copy_of)
            for own in (subjects | moved).values():
                own[0]()
            us = in_turns(subjects | moved, ring.rounds, WINDOWS)
        except Exception as error:
            print(f"{row.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            if "CUDA error" in str(error):
                break
            continue
        shape = min(moved, key=us.get)
        found = {"heads": row.heads[1], "batch": row.batch, "pool": row.pool, "bf16": row.bf16, "device": torch.cuda.get_device_name(),
                 "copy": us[shape], "shape": shape, "us": {name: us[name] for name in subjects}}  # fmt: skip
        with file.open("a") as to:
            to.write(json.dumps(found) + "\n")
    print(f"{time.time() - begun:.0f} s in all", flush=True)


def table():
    records = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    print(records[0]["device"], "- share of the copy's rate (time / present); least: from batch 64 on; * below 97%")
    for (pool, bf16), kind in KINDS.items():
        own = sorted((x for x in records if (x["pool"], x["bf16"]) == (pool, bf16)), key=lambda x: (x["heads"], x["batch"]))
        names = [n for n in ["present", "again", *OF_KIND[pool, bf16]] if any(n in x["us"] for x in own)]
        print(f"{kind:15}{'copy us':>10}" + "".join(f"{n:>17}" for n in names))
        for x in own:
            if not bf16 and x["batch"] in (1, 4, 96):
                continue  # to fit a page: rows.jsonl has them
            cells = [f"{x['copy'] / x['us'][n]:.1%} ({x['us'][n] / x['us']['present']:.3f})" if n in x["us"] else "-" for n in names]
            print(f"{x['heads']:>5} x {x['batch']:<7}{x['copy']:>10.2f}" + "".join(f"{c:>17}" for c in cells))
        top = [x for x in own if x["batch"] >= 64]
        cells = []
        for n in names:
            shares = [x["copy"] / x["us"][n] for x in top if n in x["us"]]
            ratios = [x["us"][n] / x["us"]["present"] for x in top if n in x["us"]]
            mean = math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan
            cells.append(f"{min(shares):.1%}{'' if min(shares) >= 0.97 else '*'} ({mean:.3f})" if shares else "-")
        print(f"{'least, mean':25}" + "".join(f"{c:>17}" for c in cells))


if __name__ == "__main__":
    {"build": build, "time": timed, "table": table}[sys.argv[1]]()
