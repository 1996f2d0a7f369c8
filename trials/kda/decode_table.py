"""KDA decode at 32 heads of 128, batches 1 to 256, beside FLA (float32, dense) and the fastest of five copies of the
states; all in turns, in CUDA graphs over 3.3 L2 caches of states. A line of JSON a row.

    python decode_table.py JSON BUILD [--build]
"""

import json
import random
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, "benchmarks")
import torch  # noqa: E402
from decode_ring import WINDOW, RATE, bytes_of, calls_in, copies, elements, in_turns, Memory  # noqa: E402
from decode_shapes import Row  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402
import math  # noqa: E402

D, ROOT = 128, Path.cwd()
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 65, 80, 96, 112, 128, 160, 192, 224, 256)
OUT = ("output", "new_state")


class Ring:
    def __init__(self, row, memory):
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


def main():
    build = Path(sys.argv[2])
    folder = ROOT / "solutions" / "cuda_kda_decode"
    entries = json.loads((folder / "solution.json").read_text())["entries"]
    ours = {}
    for pool in (False, True):
        for bf16 in (False, True):
            name = f"kda_decode_{'pool_' if pool else ''}k_last{'_bf16_state' if bf16 else ''}"
            ours[pool, bf16] = load_function(folder, entries[name]["entry"], build / "cuda_kda_decode")
    floor = {n: load_function(ROOT / "benchmarks" / "floor", f"kernel.cu::{n}", build / "floor") for n in ("dense", "pool")}
    if "--build" in sys.argv:
        return
    try:
        fla = load_function(ROOT / "peers" / "fla_kda", "kernel.py::decode_k_last", build / "fla_kda")
    except Exception as error:
        fla = None
        print(f"fla is left out: {type(error).__name__}: {error}")
    rows = [Row((32, 32), batch, pool, bf16) for pool, bf16 in ours for batch in BATCHES]
    memory = Memory(rows)
    worst = {}
    for row in rows:
        try:
            ring = Ring(row, memory)
            subjects = {"ours": [partial(ours[row.pool, row.bf16], *x.values()) for x in ring.calls]}
            if fla and not (row.pool or row.bf16):
                subjects["fla"] = [partial(fla, **{n: y for n, y in x.items() if n not in OUT}) for x in ring.calls]
                subjects["ours"][0]()
                expected = ring.calls[0]["output"].float().clone()
                found = subjects["fla"][0]()[0].float()
                apart = float((found - expected).norm() / expected.norm())
                if not apart < 0.02:
                    print(f"{row.name}: fla is apart by {apart:.3f}")
            for calls in subjects.values():
                calls[0]()
            moved = copies(ring, floor)
            for calls in moved.values():
                calls[0]()
            us = in_turns(subjects | moved, ring.rounds)
        except Exception as error:
            print(f"{row.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        copy = min(us[n] for n in moved)
        line = {"row": row.name, "device": torch.cuda.get_device_name(), "batch": row.batch, "pool": row.pool, "bf16": row.bf16,
                "us": us["ours"], "copy": copy, "fla": us.get("fla")}
        with open(sys.argv[1], "a") as to:
            to.write(json.dumps(line) + "\n")
        kind = row.name.rpartition(" ")[0]
        of = worst.setdefault(kind, {"share": (9.0, 0), "fla": (9.0, 0)})
        if row.batch >= 64:
            of["share"] = min(of["share"], (copy / us["ours"], row.batch))
        if us.get("fla"):
            of["fla"] = min(of["fla"], (us["fla"] / us["ours"], row.batch))
        if row.batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            said = f"  fla {us['fla']:8.2f}  {us['fla'] / us['ours']:.2f}x" if us.get("fla") else ""
            print(f"{row.name:32}{us['ours']:9.2f}  copy {copy:8.2f}  {copy / us['ours']:6.1%}{said}", flush=True)
    for kind, of in worst.items():
        print(f"least: {kind}: of the copy's rate from batch 64 on {of['share'][0]:.1%} (batch {of['share'][1]}), fla / ours {of['fla'][0]:.2f} (batch {of['fla'][1]})")


if __name__ == "__main__":
    main()
