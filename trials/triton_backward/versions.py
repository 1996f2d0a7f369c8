"""Versions of triton_backward in turns, in one process, without FlashQLA. Run in the root of the tree.

python versions.py once VERSION HEADS...     compiles: one call on the rows of these heads
python versions.py bits                      gradients beside the first version's, and the same bits in 30 calls
python versions.py eager                     bits of calls that follow one another
python versions.py time FILE SECONDS         microseconds of a call in a CUDA graph; appends a line of JSON per row
python versions.py kernels FILE              microseconds of each kernel by the profiler, eager
python versions.py choose FILE               gives the total the fastest prepare_kernel
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
VERSIONS = os.environ.get("VERSIONS", "base one gates pdl scan all").split()
ROWS = ["16/32 4x2048", "4/16 1x8192", "16/32 1x8192", "2/8 1x32768", "16/64 1x8192", "16/48 4x2048", "4/16 1x32768",
        "16/32 ragged16", "8/32 1x8192", "4/16 2x4096", "16/32 1x32768", "16/48 1x32768", "16/64 4x8192", "4/16 4x2048",
        "2/8 1x8192"]  # fmt: skip
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
    for name in ("16/32 4x2048", "4/16 1x8192", "16/32 1x8192", "16/48 4x2048", "16/64 1x8192"):
        row = next(row for row in rows() if row.name == name)
        torch.manual_seed(0)
        given, first, said = inputs(row, "decay", 0.1), None, []
        for subject in made:
            call = subject.bound(given)
            found = {k: v.clone() for k, v in call().items()}
            first = first or found
            apart = max(float((found[x].float() - first[x].float()).norm() / first[x].float().norm()) for x in OUTPUTS)
            same = all(all(torch.equal(found[x], again[x]) for x in OUTPUTS) for again in (call() for _ in range(8)))
            said.append(f"{subject.name} {apart:.1e}{'' if same else ' BITS DIFFER'}{'' if apart < 8e-3 else ' WRONG'}")
        print(f"{name}: " + "; ".join(said), flush=True)


def eager():
    """50 calls one after another, in turns on rows that lie at different places, without a graph: all bits as of one call
    that waits for all before it. So what an early start reads too soon would be found."""
    import torch
    from backward_rows import OUTPUTS, inputs

    for subject in subjects(VERSIONS):
        calls, wrong = {}, 0
        for name in ("4/16 1x8192", "16/32 ragged16", "16/48 4x2048", "4/16 4x2048", "16/32 4x2048"):
            call = subject.bound(inputs(next(row for row in rows() if row.name == name), "decay", 0.1))
            torch.cuda.synchronize()
            first = {k: v.clone() for k, v in call().items()}
            torch.cuda.synchronize()
            calls[name] = call, first
        for _ in range(10):
            found = {name: call() for name, (call, _) in calls.items()}
            torch.cuda.synchronize()
            wrong += sum(not torch.equal(found[name][x], first[x]) for name, (_, first) in calls.items() for x in OUTPUTS)
        print(f"{subject.name}: {wrong} outputs of {10 * len(calls) * len(OUTPUTS)} differ", flush=True)


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
    """Of several runs in turns, the least: a kernel that starts early also counts what it waits."""
    import torch
    from backward_rows import inputs
    from torch.profiler import ProfilerActivity, profile

    for name in ("16/32 4x2048", "4/16 1x8192", "16/64 1x8192"):
        row = next(row for row in rows() if row.name == name)
        given = inputs(row, "decay", 0.1)
        calls, least = {subject.name: subject.bound(given) for subject in subjects(VERSIONS)}, {}
        for turn in range(3):
            for version, call in calls.items():
                call()
                torch.cuda.synchronize()
                with profile(activities=[ProfilerActivity.CUDA]) as found:
                    for _ in range(5):
                        call()
                    torch.cuda.synchronize()
                for e in found.key_averages():
                    if e.key.endswith("_kernel"):
                        us = e.self_device_time_total / 5
                        of = least.setdefault(version, {})
                        of[e.key] = min(us, of.get(e.key, us))
        for version, us in least.items():
            with open(file, "a") as to:
                to.write(json.dumps({"row": name, "version": version, "us": us}) + "\n")
            print(name, version, {k.removesuffix("_kernel"): round(v, 1) for k, v in us.items()}, flush=True)


def choose(file):
    """Gives the total the prepare_kernel that was fastest: its source and its line in cut.py."""
    import re
    import shutil

    means = {}
    for line in map(json.loads, open(file)):
        means.setdefault(line["version"], []).append(math.log(line["us"]["prepare_kernel"]))
    most = max(map(len, means.values()))
    means = {k: math.exp(sum(x) / len(x)) for k, x in means.items() if len(x) == most and k not in ("pdl", "all", "gates")}
    for name, us in sorted(means.items(), key=lambda x: x[1])[:6]:
        print(f"prepare of {name}: {us:.1f} us")
    best = min(means, key=means.get)
    pattern = re.compile(r"return Blocking\(\((\d+), (\d+), (\d+)\), \(4, 0, 64, 4\)")
    found = pattern.search((HERE / "variants" / best / "triton_backward" / "cut.py").read_text())[0]
    cut = HERE / "variants" / "all" / "triton_backward" / "cut.py"
    cut.write_text(pattern.sub(found, cut.read_text()))
    source = HERE / "prepare" / ("f.py" if best.startswith("f") else "w.py")
    shutil.copyfile(source, cut.parent / "prepare.py")
    print(f"all has the prepare_kernel of {best}: {found}")


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
    {"once": lambda: once(rest[0], rest[1:]), "bits": bits, "eager": eager, "time": lambda: timed(rest[0], float(rest[1])),
     "kernels": lambda: kernels(rest[0]), "table": lambda: table(rest[0]), "choose": lambda: choose(rest[0])}[what]()
