"""Versions of triton_backward in turns, in one process, without FlashQLA. Run in the root of the tree.

python versions.py once VERSION HEADS...     compiles: one call on the rows of these heads
python versions.py bits                      gradients beside the first version's, and the same bits in 30 calls
python versions.py time FILE SECONDS         microseconds of a call in a CUDA graph; appends a line of JSON per row
python versions.py kernels FILE              microseconds of each kernel by the profiler, eager
python versions.py table FILE                prints ratios
"""

import json
import math
import os
import sys
import time
from argparse import Namespace
from pathlib import Path

HERE, ROOT = Path(__file__).resolve().parent, Path.cwd()
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
BUILD = Path(os.environ.get("TB_BUILD", "/tmp/tb_build"))
VERSIONS = os.environ.get("VERSIONS", "before nomend v10 plain acc moves3 beside32").split()
ROWS = ["16/32 4x2048", "4/16 1x8192", "16/32 1x8192", "16/32 1x32768", "2/8 1x32768", "4/16 1x32768", "16/48 1x32768",
        "16/64 1x8192", "16/64 4x8192", "16/32 ragged16", "4/16 4x2048", "8/32 1x8192", "4/16 2x4096", "16/48 4x2048",
        "2/8 1x8192", "8/32 8x1024", "2/8 4x2048", "4/16 lognormal24", "16/32 short 64x128", "4/12 short 100x300",
        "16/64 short 48x512", "16/32 short 256x128"]  # fmt: skip
OPTIONS = Namespace(gates="decay", decay=0.1)


def rows():
    from prefill_shapes import rows as all_rows

    found = {row.name: row for row in all_rows()}
    return [found[name] for name in ROWS]


def subjects(names):
    from backward_rows import Solution

    made = [Solution(str(HERE / "variants" / name / "triton_backward"), BUILD) for name in names]
    for subject, name in zip(made, names, strict=True):
        subject.name = name
    return made


def once(version, heads):
    import torch
    from backward_rows import inputs

    (subject,) = subjects([version])
    for row in rows():
        if "{}/{}".format(*row.heads) in heads:
            subject.bound(inputs(row, "decay", 0.1))()
            torch.cuda.synchronize()


def bits():
    import torch
    from backward_rows import OUTPUTS, inputs

    made = subjects(VERSIONS)
    for name in ("16/32 4x2048", "4/16 1x8192", "16/32 1x8192", "4/16 2x4096", "2/8 1x32768", "16/48 4x2048", "16/32 short 64x128"):
        row = next(row for row in rows() if row.name == name)
        torch.manual_seed(0)
        given, first, said = inputs(row, "decay", 0.1), None, []
        for subject in made:
            call = subject.bound(given)
            found = {k: v.clone() for k, v in call().items()}
            first = first or found
            apart = max(float((found[x].float() - first[x].float()).norm() / first[x].float().norm()) for x in OUTPUTS)
            same = all(all(torch.equal(found[x], again[x]) for x in OUTPUTS) for again in (call() for _ in range(20)))
            said.append(f"{subject.name} {apart:.1e}{'' if same else ' BITS DIFFER'}{'' if apart < 8e-3 else ' WRONG'}")
        print(f"{name}: " + "; ".join(said), flush=True)


def timed(file, limit):
    from backward_rows import measure

    made, begin = subjects(VERSIONS), time.time()
    for row in rows():
        if time.time() - begin > limit:
            print(f"out of time before {row.name}")
            break
        us, allocated = measure(made, row, OPTIONS)
        with open(file, "a") as to:
            to.write(json.dumps({"row": row.name, "us": us, "MB": allocated}) + "\n")
        print(row.name, {k: f"{v[0]:.0f}{v[1]}" for k, v in us.items()}, flush=True)


def kernels(file):
    import torch
    from backward_rows import inputs
    from torch.profiler import ProfilerActivity, profile

    for name in ("16/32 4x2048", "4/16 1x8192", "16/32 1x8192", "16/64 1x8192"):
        row = next(row for row in rows() if row.name == name)
        given = inputs(row, "decay", 0.1)
        for subject in subjects(VERSIONS):
            call = subject.bound(given)
            call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(10):
                    call()
                torch.cuda.synchronize()
            us = {e.key: e.self_device_time_total / 10 for e in found.key_averages() if e.key.endswith("_kernel")}
            with open(file, "a") as to:
                to.write(json.dumps({"row": name, "version": subject.name, "us": us}) + "\n")
            print(name, subject.name, {k.removesuffix("_kernel"): round(v) for k, v in us.items()}, flush=True)


def table(file):
    lines = [json.loads(line) for line in open(file)]
    names = list(lines[0]["us"])
    print(f"{'row':24}" + "".join(f"{name:>12}" for name in names) + "   ratios to the first")
    ratios = {name: [] for name in names}
    for line in lines:
        us = {name: line["us"][name][0] for name in names}
        for name in names:
            ratios[name].append(math.log(us[name] / us[names[0]]))
        marks = "".join(line["us"][name][1] for name in names)
        print(f"{line['row']:24}" + "".join(f"{us[name]:12.0f}" for name in names) + "   "
              + " ".join(f"{us[name] / us[names[0]]:.3f}" for name in names[1:]) + f" {marks}")
    print(f"{'geometric mean':24}" + "".join(f"{math.exp(sum(x) / len(x)):12.3f}" for x in ratios.values()))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"once": lambda: once(rest[0], rest[1:]), "bits": bits, "time": lambda: timed(rest[0], float(rest[1])),
     "kernels": lambda: kernels(rest[0]), "table": lambda: table(rest[0])}[what]()
