"""FlashQLA's TileLang kernels that the rows need, each compiled in a process of its own, without a GPU.

    python tl.py list FILE            what the rows ask for, found by running FlashQLA's Python with kernels that do nothing
    python tl.py compile FILE JOBS    all of FILE, JOBS at a time; what lies in $TILELANG_CACHE_DIR is not compiled again
    python tl.py one FILE NUMBER
"""
import inspect, json, os, pickle, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

HERE = Path.cwd()


def pretend():
    """A Hopper GPU of 132 multiprocessors, for whoever only asks."""
    import torch
    if os.environ.get("PRETEND") == "0":
        return torch
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.cuda.get_device_properties = lambda *a, **k: SimpleNamespace(
        multi_processor_count=132, major=9, minor=0, name="NVIDIA H200", gcnArchName="",
        shared_memory_per_block_optin=232448, total_memory=143 << 30)
    torch.cuda.current_device = lambda: 0
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda *a, **k: "NVIDIA H200"
    import tilelang
    tilelang.contrib.nvcc.get_target_compute_version = lambda target=None: "9.0"
    return torch


def listed(file):
    torch = pretend()
    from tilelang.jit import JITImpl
    import tilelang
    found = {}
    real = JITImpl.__call__

    def record(self, *args, **kwargs):
        of = self.func.orig_func
        bound = inspect.signature(of).bind(*args, **kwargs)
        key = (of.__module__, of.__name__, tuple(args), tuple(sorted(kwargs.items(), key=lambda x: x[0])))
        found.setdefault(repr(key), key)
        return lambda *a, **k: None

    JITImpl.__call__ = record
    sys.path[:0] = [str(HERE / "benchmarks"), str(HERE / "tools")]
    from prefill_shapes import rows
    from flash_qla.ops.gated_delta_rule import chunk as lib
    import warnings; warnings.simplefilter("ignore")
    from functools import partial
    asked = [r for r in rows() if r.group in ("long", "short")]
    for row in asked:
        (hk, h), D, total, n = row.heads, row.head_size, sum(row.lengths), len(row.lengths)
        e = partial(torch.empty)
        cu = torch.tensor([0, *row.lengths]).cumsum(0)
        q, k = (e(1, total, hk, D, dtype=torch.bfloat16) for _ in range(2))
        v, do = (e(1, total, h, D, dtype=torch.bfloat16) for _ in range(2))
        g, beta = (e(1, total, h) for _ in range(2))
        h0, dht = (e(n, h, D, D) for _ in range(2))
        for split in (True, False):
            before = len(found)
            ctx = lib.build_cp_context(cu.clone(), enable_intra=split, num_v_heads=h, chunk_size=lib.CHUNK_SIZE, is_train=True)
            common = {"initial_state": h0, "cu_seqlens": ctx.cu_seqlens, "state_v_first": True, "cp_context": ctx, "scale": D ** -0.5}
            sums, A, *_, kept = lib.chunk_gated_delta_rule_fwd(q, k, v, g, beta, enable_fwd_cp_cache=True, is_train=True, **common)
            lib.chunk_gated_delta_rule_bwd(q, k, v, sums, beta, A, do, dht=dht, cp_cache=kept, **common)
            if len(found) > before:
                print(f"{row.name} split={split} intra={ctx.is_intra}: {len(found)} kernels", flush=True)
    slow = ("fused_chunk_gdr_bwd", "prepare_dh", "fused_chunk_gdr_fwd", "prepare_h", "correct", "kkt")
    order = lambda key: next((i for i, s in enumerate(slow) if s in key[1]), 9)
    keys = sorted(found.values(), key=order)
    Path(file).write_bytes(pickle.dumps(keys))
    for i, key in enumerate(keys):
        print(i, key[0].split(".")[-1], key[1], key[2], flush=True)


def one(file, number):
    pretend()
    import importlib
    import torch
    number = int(number)
    module, name, args, kwargs = pickle.loads(Path(file).read_bytes())[number]
    import flash_qla.ops.gated_delta_rule.chunk  # noqa
    impl = getattr(importlib.import_module(module), name)
    begin = time.time()
    kernel = impl(*args, **dict(kwargs))
    print(f"{number} {name} {args} {time.time() - begin:.1f} s {getattr(kernel, '_tilelang_cache_key', '')[:12]}")


def entries():
    return {str(x) for x in Path(os.environ["TILELANG_CACHE_DIR"]).glob("*/linux-*/kernels/*")}


def real(file):
    """On a real GPU: is what was compiled without one found, loaded, and right? Else exit code 1."""
    import torch
    from flash_qla.ops.utils import chunk_local_cumsum
    before = entries()
    g = torch.rand(1, 130, 8, device="cuda")
    cu = torch.tensor([0, 70, 130], device="cuda")
    found = chunk_local_cumsum(g, 64, cu_seqlens=cu)
    parts = [(0, 64), (64, 70), (70, 130)]
    right = torch.cat([g[:, a:z].cumsum(1) for a, z in parts], 1)
    new = entries() - before
    fine = bool(before) and not new and bool((found - right).abs().max() < 1e-3)
    print(f"real: {len(before)} entries before, {len(new)} new, error {float((found - right).abs().max()):.1e}: {'fine' if fine else 'WRONG'}")
    return fine


def compile_all(file, jobs):
    keys = pickle.loads(Path(file).read_bytes())
    done = Path(os.environ["TILELANG_CACHE_DIR"]) / "done"
    done.mkdir(parents=True, exist_ok=True)
    begin = time.time()

    def work(i):
        mark = done / f"{i}.{len(keys)}"
        if mark.exists():
            return True
        made = subprocess.run([sys.executable, __file__, "one", file, str(i)], capture_output=True, text=True)
        if made.returncode == 0:
            mark.write_text(made.stdout[-500:])
            print(made.stdout.strip().splitlines()[-1][:200], flush=True)
            return True
        print(f"{i} {keys[i][1]} FAILED: {made.stderr[-600:]}", flush=True)
        return False

    with ThreadPoolExecutor(int(jobs)) as pool:
        ok = list(pool.map(work, range(len(keys))))
    print(f"{sum(ok)} of {len(keys)} kernels in {time.time() - begin:.0f} s", flush=True)
    return all(ok)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    out = {"list": listed, "one": one, "compile": compile_all, "real": real}[what](*rest)
    sys.exit(0 if out in (None, True) else 1)
