"""Variants of triton_kda's backward pass. Run in the root of the tree.

python versions.py once VERSION HEADS [GATES]   compiles: one call on a row of these heads (short and long ones apart)
python versions.py sweep_jobs                    prints the sweep's jobs;  sweep_one FOLDER KERNEL I   compiles one
python versions.py sweep FILE                    microseconds of scores_kernel and between_kernel by configuration
python versions.py check                         errors beside the reference in float64, and the same bits in 20 calls
python versions.py time FILE SECONDS             a call in a CUDA graph, in turns;   table FILE
python versions.py kernels                       microseconds of each kernel by the profiler, eager
"""

import json, math, os, sys, time
from pathlib import Path

HERE, ROOT = Path(__file__).resolve().parent, Path.cwd()
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools"), str(ROOT)]
BUILD = Path(os.environ.get("KB_BUILD", "/tmp/kb_build"))
VERSIONS = os.environ.get("VERSIONS", "before scores between both table ahead split").split()
ROWS = ["32 short 64x128", "32 short 256x40", "16 short 64x128", "4 short 256x40", "32 4x2048", "8 1x8192"]
GATES = os.environ.get("GATES", "12 0.3 typical").split()
SWEEP = {
    ("before", "scores_kernel"): [(4, 64), (4, 32), (4, 128), (2, 64), (2, 32), (1, 64), (1, 32), (8, 64),
                                  (1, 64, 0, 128), (2, 64, 0, 168), (4, 64, 0, 168), (4, 64, 0, 128)],
    ("before", "between_kernel"): [(4, 64), (4, 32), (4, 128), (2, 64), (2, 32), (1, 64), (1, 32), (8, 64), (8, 128),
                                   (4, 64, 0, 168), (4, 64, 0, 128), (2, 64, 0, 128), (1, 32, 0, 128)],
    ("table", "scores_kernel"): [(1, 32), (1, 32, 2), (1, 32, 3), (1, 32, 2, 168)],
    ("split", "scores_kernel"): [(1, 32), (1, 32, 2), (1, 32, 3), (1, 32, 1, 168), (1, 32, 2, 168), (1, 32, 1, 128),
                                 (1, 64, 2), (1, 16), (1, 16, 2), (1, 16, 3), (1, 16, 2, 96), (2, 32)],
    ("table", "between_kernel"): [(1, 32), (1, 32, 2), (1, 32, 3), (2, 64), (2, 64, 2), (1, 16), (1, 16, 2), (2, 32),
                                  (4, 64), (1, 64), (1, 32, 1, 168), (2, 64, 1, 168), (1, 16, 1, 128), (2, 32, 1, 128),
                                  (1, 16, 1, 96), (4, 64, 1, 128)],
}  # fmt: skip


def row_of(name):
    from kda_backward_rows import rows

    return next(row for row in rows() if row.name == name)


def bind(version):
    from gdnspec.build.loader import load_function
    from kda_backward_rows import LIKE

    import torch

    entry = load_function(HERE / version / "triton_kda", "backward.py::backward_k_last", BUILD / f"{version}_{os.getpid()}")

    def bound(given):
        out = {name: torch.full_like(given[like], math.nan) for name, like in LIKE.items()}

        def call():
            entry(**given, **out)
            return out

        return call

    return bound


def once(version, heads, gates="12"):
    import torch
    from kda_backward_rows import arguments
    from kda_rows import Row

    bound = bind(version)
    for lengths in ((128,) * 64, (2048,) * 4, (8192,)) if int(heads) != 4 else ((40,) * 256, (2048,) * 4, (300, 64, 1, 0, 129)):
        bound(arguments(Row("x", int(heads), lengths), gates))()
        torch.cuda.synchronize()


class Configured:
    """Launches of one kernel with other options; `only` leaves out the others."""

    def __init__(self, kernel):
        from triton.runtime.jit import JITFunction

        self.kernel, self.options, self.real, self.saved = kernel, None, JITFunction.run, None
        me = self

        def run(jit, *args, grid, **kw):
            if jit.fn.__name__ == me.kernel:
                me.saved = (jit, args, grid, dict(kw))
            return me.real(jit, *args, grid=grid, **kw)

        JITFunction.run = run

    def launch(self, configuration):
        jit, args, grid, kw = self.saved
        warps, BD, stages, registers = (*configuration, 0, 0)[:4] if len(configuration) < 4 else configuration
        kw, D, old = dict(kw), kw["D"], kw["BD"]
        kw |= {"BD": BD, "num_warps": warps}
        if stages:
            kw["STAGES"] = stages
        if registers:
            kw["maxnreg"] = registers
        programs = grid[0]
        if self.kernel == "between_kernel":
            programs = programs // -(-D // old) * -(-D // BD)
        return self.real(jit, *args, grid=(programs,), **kw)


def ready(version, kernel, gates="12"):
    import torch
    from kda_backward_rows import arguments

    configured = Configured(kernel)
    torch.manual_seed(0)
    call = bind(version)(arguments(row_of("32 short 64x128"), gates))
    call()
    torch.cuda.synchronize()
    return configured, call


def sweep_jobs():
    for (version, kernel), found in SWEEP.items():
        for start in range(0, len(found), 4):
            print(version, kernel, start)


def sweep_one(version, kernel, start):
    import torch

    configured, _ = ready(version, kernel)
    for one in SWEEP[version, kernel][int(start) : int(start) + 4]:
        try:
            configured.launch(one)
            torch.cuda.synchronize()
        except Exception as error:
            print(version, kernel, one, type(error).__name__, str(error)[:100])


def sweep(file):
    import statistics, torch

    lines = []
    for (version, kernel), found in SWEEP.items():
        for gates in ("12", "0.3"):
            configured, _ = ready(version, kernel, gates)
            for one in found:
                try:
                    kernel_used = configured.launch(one)
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        for _ in range(5):
                            configured.launch(one)
                    seen = []
                    for _ in range(4):
                        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                        a.record(); graph.replay(); b.record(); b.synchronize()
                        seen.append(a.elapsed_time(b) * 200)
                    lines.append({"version": version, "kernel": kernel, "gates": gates, "of": one,
                                  "us": statistics.median(seen[1:]), "registers": getattr(kernel_used, "n_regs", 0),
                                  "spills": getattr(kernel_used, "n_spills", 0)})
                except Exception as error:
                    print(version, kernel, gates, one, type(error).__name__, str(error)[:100])
            with open(file, "w") as to:
                to.writelines(json.dumps(x) + "\n" for x in lines)
    for version, kernel in SWEEP:
        mine = [x for x in lines if (x["version"], x["kernel"]) == (version, kernel)]
        mild = {tuple(x["of"]): x["us"] for x in mine if x["gates"] == "0.3"}
        print(f"{version} {kernel}, warps BD [stages maxnreg]: us at gates 12 / 0.3, registers, spills")
        best = sorted((x for x in mine if x["gates"] == "12"), key=lambda x: x["us"])[:8]
        print("   " + "; ".join(f"{' '.join(map(str, x['of']))}: {x['us']:.0f} / {mild.get(tuple(x['of']), math.nan):.0f} ({x['registers']}, {x['spills']})" for x in best))


def check():
    import torch
    from gdnspec.build.reference import module
    from gdnspec.catalog.families import family
    from kda_backward_rows import OUTPUTS, apart, arguments
    from kda_rows import CHECKED, D, Row

    exact = module(family("kda"), "backward").prefill_backward_k_last
    subjects = {name: bind(name) for name in VERSIONS}
    print("relative errors of " + ", ".join(OUTPUTS))
    more = {"gates 12": (300, 64, 1, 0, 129), "gates 12 short": (40,) * 12, "gates 60": (200,), "typical": (200, 17)}
    for name, lengths in (CHECKED | more).items():
        torch.manual_seed(1)
        given = arguments(Row(name, 4, lengths), "12" if "12" in name else "60" if "60" in name else name if name == "typical" else "0.3")
        g = given["g"]
        if name == "resets":
            g[torch.rand_like(g) < 0.05] = -math.inf
            g[::7] = -math.inf
        elif name == "slow and fast channels":
            g *= torch.logspace(-3, 2.5, D, device="cuda")
        elif name == "no decay":
            g.zero_()
        wide = {key: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for key, x in given.items()}
        expected = dict(zip(OUTPUTS, exact(**wide), strict=True))
        first = None
        for subject, bound in subjects.items():
            call = bound(given)
            found = {k: v.clone() for k, v in call().items()}
            errors = apart(found, expected)
            first = first or errors
            same = all(all(torch.equal(found[x], again[x]) for x in OUTPUTS) for again in (call() for _ in range(20)))
            zeros = bool((found["dg"][expected["dg"] == 0] == 0).all())
            wrong = any(not errors[x] <= max(1.3 * first[x], 1e-4) for x in OUTPUTS)
            print(f"{name:23}{subject:9}" + "".join(f"{errors[x]:9.1e}" for x in OUTPUTS)
                  + ("" if same else " BITS DIFFER") + ("" if zeros else " DG OF RESETS") + (" WORSE" if wrong else ""), flush=True)
    # The large row beside the first version: many programs at once.
    from kda_backward_rows import arguments as made

    for name in ("32 short 64x128", "32 4x2048"):
        for gates in ("12", "0.3"):
            torch.manual_seed(2)
            given, first, said = made(row_of(name), gates), None, []
            for subject, bound in subjects.items():
                call = bound(given)
                found = {k: v.clone() for k, v in call().items()}
                first = first or found
                far = max(float((found[x].float() - first[x].float()).norm() / first[x].float().norm()) for x in OUTPUTS)
                same = all(all(torch.equal(found[x], again[x]) for x in OUTPUTS) for again in (call() for _ in range(8)))
                said.append(f"{subject} {far:.1e}{'' if same else ' BITS DIFFER'}{'' if far < 8e-3 else ' WRONG'}")
                del found
            print(f"{name}, {gates}: " + "; ".join(said), flush=True)


def timed(file, limit):
    import torch
    from kda_backward_rows import arguments
    from prefill_rows import Timed

    made, begin = {name: bind(name) for name in VERSIONS}, time.time()
    for gates in GATES:
        for name in ROWS:
            if time.time() - begin > limit:
                print(f"out of time before {name} {gates}")
                return
            torch.manual_seed(0)
            sets = [arguments(row_of(name), gates) for _ in range(2)]
            windows = {}
            for subject, bound in made.items():
                windows[subject] = Timed([bound(given) for given in sets])
            for _ in range(6):
                for one in windows.values():
                    one.window()
            us = {subject: (one.median, "" if one.graph else "*") for subject, one in windows.items()}
            with open(file, "a") as to:
                to.write(json.dumps({"row": name, "gates": gates, "us": us}) + "\n")
            print(name, gates, {k: f"{v[0]:.0f}{v[1]}" for k, v in us.items()}, flush=True)
            del windows, sets
            torch.cuda.empty_cache()


def kernels():
    import torch
    from kda_backward_rows import arguments
    from torch.profiler import ProfilerActivity, profile

    for name, gates in (("32 short 64x128", "12"), ("32 short 64x128", "0.3"), ("32 4x2048", "12")):
        torch.manual_seed(0)
        given = arguments(row_of(name), gates)
        for subject in VERSIONS:
            call = bind(subject)(given)
            call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(5):
                    call()
                torch.cuda.synchronize()
            us = {e.key: e.self_device_time_total / 5 for e in found.key_averages() if e.key.endswith("_kernel")}
            print(f"{name} {gates} {subject}: " + " ".join(f"{k.removesuffix('_kernel')} {v:.0f}" for k, v in us.items()), flush=True)


def table(file):
    lines = [json.loads(line) for line in open(file)]
    names = list(lines[0]["us"])
    print(f"{'row':26}" + "".join(f"{name:>9}" for name in names) + "   ratios to the first")
    for gates in dict.fromkeys(line["gates"] for line in lines):
        ratios = {name: [] for name in names}
        for line in (x for x in lines if x["gates"] == gates):
            us = {name: line["us"][name][0] for name in names}
            for name in names:
                ratios[name].append(math.log(us[name] / us[names[0]]))
            marks = "".join(line["us"][name][1] for name in names)
            print(f"{line['row'] + ' ' + gates:26}" + "".join(f"{us[name]:9.0f}" for name in names) + "   "
                  + " ".join(f"{us[name] / us[names[0]]:.3f}" for name in names[1:]) + f" {marks}")
        print(f"{'geometric mean ' + gates:26}" + "".join(f"{math.exp(sum(x) / len(x)):9.3f}" for x in ratios.values()))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"once": lambda: once(*rest), "sweep_jobs": sweep_jobs, "sweep_one": lambda: sweep_one(*rest), "check": check,
     "sweep": lambda: sweep(rest[0]), "time": lambda: timed(rest[0], float(rest[1])), "kernels": kernels,
     "table": lambda: table(rest[0])}[what]()
