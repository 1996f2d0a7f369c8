"""Compile and tune FLA's KDA kernels, and compile triton_kda's.

    python fla_tuning.py compile RANK OF CLAIMS   one of OF processes side by side; nothing is launched
    python fla_tuning.py tune                     one process; timings stay in TRITON_CACHE_DIR (FLA's cache_results)
"""

import faulthandler
import hashlib
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

faulthandler.enable()
sys.path.insert(0, "benchmarks")
import torch  # noqa: E402
import triton.testing  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.jit import JITFunction, compute_cache_key, knobs  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402

import kda_backward_rows as backward  # noqa: E402
import kda_rows as forward  # noqa: E402

HEADS = (32, 16, 8, 4)
BUSY = {"compiled": 0, "failed": 0}
real_run = JITFunction.run


def compile_only(claims: Path):
    known = set()

    def run(self, *args, grid, warmup, **kwargs):
        kwargs["debug"] = kwargs.get("debug", self.debug) or knobs.runtime.debug
        kwargs["instrumentation_mode"] = knobs.compilation.instrumentation_mode
        device = driver.active.get_current_device()
        _, keys, _, _, binder = self.device_caches[device]
        _, specialization, options = binder(*args, **kwargs)
        key = self.cache_key + compute_cache_key(keys, specialization, options)
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        if name in known:
            return None
        known.add(name)
        try:
            os.close(os.open(claims / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return None
        start = time.time()
        try:
            real_run(self, *args, grid=grid, warmup=True, **kwargs)
            BUSY["compiled"] += 1
        except Exception as error:  # a configuration that does not compile is not chosen either
            BUSY["failed"] += 1
            print(f"failed {self.__name__} {type(error).__name__}: {str(error)[:120]!r}", flush=True)
        (claims / name).write_text(f"{self.__name__} {time.time() - start:.1f}\n")
        return None

    def tuned(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args))
        for config in self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs:
            self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None

    def known_choice(self, *args, **kwargs):
        """Where timings are on disk already, only the choice."""
        self.nargs = dict(zip(self.arg_names, args))
        every = {**self.nargs, **kwargs}
        taken = {k: v for k, v in every.items() if k in self.arg_names}
        key = tuple([taken[k] for k in self.keys if k in taken] + [str(x.dtype) for x in taken.values() if hasattr(x, "dtype")])

        def none():
            raise LookupError

        try:
            if key not in self.cache:
                self.check_disk_cache(key, self.prune_configs(kwargs), none)
            found = self.cache[key]
        except LookupError:
            return tuned(self, *args, **kwargs)
        self.fn.run(*args, **kwargs, **found.all_kwargs())
        self.nargs = None

    JITFunction.run = run
    Autotuner.run = known_choice


def bound(which, scratch, row):
    """Calls of FLA's forward and backward pass, and of its decode."""
    given = backward.arguments(row, "0.3")
    forward_given = forward.arguments(row, "0.3")
    which["backward"](given)()
    which["forward"](forward_given)()


def peers(scratch):
    return {"backward": backward.of_fla(), "forward": forward.of_fla(scratch)}


def decode_of_fla(scratch):
    from gdnspec.build.loader import load_function

    return load_function(forward.ROOT / "peers" / "fla_kda", "kernel.py::decode_k_last", scratch / "fla_kda")


def decode_calls(call):
    for heads in (32, 64, 96):
        for batch in (1, 4, 16):
            normal = partial(torch.randn, device="cuda")
            q, k, v, a = (normal(batch, 1, heads, 128).bfloat16() for _ in range(4))
            call(
                q=q, k=k, v=v, state=normal(batch, heads, 128, 128), A_log=normal(heads), a=a,
                dt_bias=normal(heads, 128), b=normal(batch, 1, heads).bfloat16(),
                lower_bound=None, scale=None, use_qk_l2norm=None,
            )


def attempt(name, call):
    try:
        call()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:300]!r}", flush=True)


def compile_all(rank, of, claims):
    start = time.time()
    compile_only(claims)
    small = (64, 128)
    with tempfile.TemporaryDirectory() as text:
        scratch = Path(text)
        which = peers(scratch)
        mine, back = forward.ours(scratch), backward.ours(scratch)
        others = [forward.ours(scratch, x) for x in sorted(Path(os.environ.get("H42_VARIANTS", "/none")).glob("*")) if x.is_dir()]
        fla = [lambda h=h: bound(which, scratch, forward.Row("", h, small)) for h in HEADS]
        ours = []
        rows = [row for row in backward.rows() if sum(row.lengths) * row.heads <= 32 * 16384]
        for row in rows:
            ours.append(lambda row=row: mine(forward.arguments(row, "0.3"))())
            ours.append(lambda row=row: back(backward.arguments(row, "0.3"))())
            ours.extend(lambda row=row, x=x: x(forward.arguments(row, "0.3"))() for x in others)
        # half of the processes begin with triton_kda's rows, whose kernels take longest
        turned = ours[rank * 5 % len(ours):] + ours[: rank * 5 % len(ours)]
        every = fla if "WITH_OURS" not in os.environ else [*turned, *fla] if rank % 2 else [*fla, *turned]
        for n, call in enumerate(every):
            attempt(n, call)
            torch.cuda.empty_cache()
        attempt("decode", lambda: decode_calls(decode_of_fla(scratch)))
    print(f"rank {rank}: {BUSY}, {time.time() - start:.0f} s", flush=True)


def tune():
    start = time.time()
    Autotuner.do_bench = property(lambda self: partial(triton.testing.do_bench, warmup=5, rep=30))
    with tempfile.TemporaryDirectory() as text:
        which = peers(Path(text))
        print(f"import {time.time() - start:.0f} s", flush=True)
        for heads in HEADS:
            row = forward.Row("", heads, (2048,) * 4)
            bound(which, Path(text), row)
            torch.cuda.synchronize()
            print(f"{heads} heads tuned after {time.time() - start:.0f} s", flush=True)


def chosen():
    """What was chosen, a line a kernel."""
    import json

    for file in sorted(Path(os.environ["TRITON_CACHE_DIR"]).glob("*/*.autotune.json")):
        timings = json.loads(file.read_text())["configs_timings"]
        config, times = min(timings, key=lambda x: x[1])
        heads = json.loads(file.read_text())["key"]
        said = {**config["kwargs"], "warps": config["num_warps"], "stages": config["num_stages"]}
        print(f"{file.name.removesuffix('.autotune.json')[:52]:52} {str(heads[:4]):24} {len(timings):3} configs {times[0] * 1e3:8.1f} us {said}")


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_all(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1] == "tune":
        tune()
    else:
        chosen()
