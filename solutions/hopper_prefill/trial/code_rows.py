"""The form `long` with less code (long_loops.cuh), beside today's choice and the form as it was.

    bash solutions/hopper_prefill/trial/build.sh FOLDER
    PYTHONPATH=benchmarks:tools:solutions/hopper_prefill/trial python .../trial/code_rows.py FOLDER [SECONDS]

Today's choice is `new.so`, the others `v_NAME.so`. The last table is what is to be read.
"""

import os
import sys
import time
from pathlib import Path

import torch
import tvm_ffi

os.environ["GDN_FORM"] = "3"
import long_rows as L

ROWS = [
    "16/32 4x8192", "16/32 4x2048", "16/32 8x1024", "16/32 48x512", "16/32 24x1000", "16/32 100x300",
    "8/32 4x8192", "16/48 4x8192", "4/12 100x300", "16/32 lognormal64",
]  # fmt: skip
FIRST = ["long", "halves"]


def errors(kernels: dict, sets: list) -> dict[str, str]:
    """Of output and state, beside today's choice."""
    found, chosen = {}, None
    for name, kernel in kernels.items():
        for of in sets[0][8:10]:
            of.fill_(float("nan"))
        L.call(*kernel, sets[0])
        torch.cuda.synchronize()
        if chosen is None:
            chosen = [of.clone() for of in sets[0][8:10]]
        else:
            found[name] = "/".join(f"{L.distance(of, to):.0e}" for of, to in zip(sets[0][8:10], chosen, strict=True))
    return found


def main() -> None:
    folder, seconds, begun = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9, time.time()

    def load(name: str):
        return tvm_ffi.load_module(str(folder / f"{name}.so"))

    if (folder / "clocks.so").exists():
        L.print_clocks(load("clocks"))
    names = sorted((file.stem[2:] for file in folder.glob("v_*.so")), key=lambda x: (x not in FIRST, x != "long", x))
    kernels = {"chosen": (load("new").gdn_prefill_k_last, 0)}
    kernels |= {name: (load(f"v_{name}").gdn_prefill_k_last, L.LONG) for name in names}
    width = max(map(len, kernels)) + 2
    lines = ["row".ljust(18) + "".join(name.rjust(width) for name in kernels) + "  FlashInfer, H100"]
    wrong = []
    for row in ROWS:
        if time.time() - begun > seconds:
            lines.append("time is up")
            break
        sets = [L.arguments(row) for _ in range(2)]
        off = errors(kernels, sets)
        print(row, off, flush=True)
        for name, x in off.items():
            if "no_t" not in name and not max(map(float, x.split("/"))) < 1e-2:
                wrong.append(f"{row}: {name} {x}")
        us = L.measure({name: L.record(*kernel, sets) for name, kernel in kernels.items()})
        line = "".join(f"{us[name]:{width}.1f}" for name in kernels)
        lines.append(row.ljust(18) + line + f"  {L.FLASHINFER.get(row)}")
        print(lines[-1], flush=True)
        del sets
        torch.cuda.empty_cache()
    print("\n" + "\n".join(lines))
    print("WRONG: " + ", ".join(wrong) if wrong else "all within 1e-2 of today's choice")


if __name__ == "__main__":
    main()
