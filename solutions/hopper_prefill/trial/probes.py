"""What slows those who advance. Builds `p_NAME.so` of this form, clocks of `c_NAME.so`, today's choice from `new.so`.

PYTHONPATH=benchmarks:tools:solutions/hopper_prefill/trial python .../trial/probes.py FOLDER "ROW,ROW"
"""

import os
import sys
from pathlib import Path

import torch
import tvm_ffi

os.environ["GDN_FORM"] = "3"
import long_rows as L

folder = Path(sys.argv[1])
rows = sys.argv[2].split(",")


def load(name):
    return tvm_ffi.load_module(str(folder / f"{name}.so"))


kernels = {"chosen": (load("new").gdn_prefill_k_last, 0)}
for f in sorted(folder.glob("p_*.so")):
    kernels[f.stem[2:]] = (load(f.stem).gdn_prefill_k_last, 3)
for c in sorted(folder.glob("c_*.so")):
    print("==", c.stem, flush=True)
    try:
        L.print_clocks(load(c.stem))
    except Exception as e:
        print("clocks failed", e)
print("row".ljust(18), *(n.rjust(9) for n in kernels), "FI(H100)", flush=True)
for row in rows:
    sets = [L.arguments(row) for _ in range(2)]
    us = L.measure({n: L.record(*k, sets) for n, k in kernels.items()})
    print(row.ljust(18), *(f"{us[n]:9.1f}" for n in kernels), L.FLASHINFER.get(row), flush=True)
    out = {}
    for n, k in kernels.items():
        sets[0][8].zero_(), sets[0][9].zero_()
        L.call(*k, sets[0])
        torch.cuda.synchronize()
        out[n] = (sets[0][8].clone(), sets[0][9].clone())
        if n == "chosen":
            continue
    if row == rows[0] or row == rows[-1]:
        print("   off".ljust(18), *(f"{L.distance(out[n][0], out['chosen'][0]):9.0e}" for n in kernels), flush=True)
        print(
            "   state off".ljust(18), *(f"{L.distance(out[n][1], out['chosen'][1]):9.0e}" for n in kernels), flush=True
        )
    del sets, out
    torch.cuda.empty_cache()
