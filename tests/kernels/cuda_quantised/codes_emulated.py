"""Calls the emulated kernels of cuda_quantised; run by test_codes_emulation.py in a process of its own, which the
emulator ends where it finds an error. Arguments: the library, the number of a kernel, and rows of the suites.

It prints, for each row, the output's relative error against the reference in float64, the largest step between two
codes, the part of them that are off, and the scales' relative error; `kept` is whether what is not named stayed as it
was.
"""

import ctypes
import json
import sys
from typing import Any

import torch
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.numerics.code_steps import place
from helpers_unit import arguments, run_reference

WHOLE = 2  # of the kernels, that which takes whole heads
POINTER, LONG, INT, FLOAT, BOOL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float, ctypes.c_bool


class Arguments(ctypes.Structure):
    _fields_ = [
        ("q", POINTER), ("k", POINTER), ("v", POINTER), ("qk_stride", LONG), ("v_stride", LONG), ("pool", POINTER),
        ("to", POINTER), ("slot_stride", LONG), ("read", POINTER), ("write", POINTER), ("accepted", POINTER),
        ("num_slots", INT), ("A_log", POINTER), ("a", POINTER), ("dt_bias", POINTER), ("b", POINTER),
        ("output", POINTER), ("H", INT), ("T", INT), ("scale", FLOAT), ("normalise", BOOL), ("pool_scales", POINTER),
        ("scales_stride", LONG),
    ]  # fmt: skip


def call(library: Any, which: int, given: dict[str, Any]) -> None:
    pool, q = given["pool"], given["q"]
    rows, T, key_heads, D = q.shape
    H = pool.shape[1]
    p = Arguments(**{key: given[key].data_ptr() for key, _ in Arguments._fields_ if torch.is_tensor(given.get(key))})
    p.to, p.qk_stride, p.v_stride, p.slot_stride = p.pool, key_heads * D, H * D, pool.stride(0)
    p.scales_stride, p.num_slots, p.H, p.T = given["pool_scales"].stride(0), len(pool), H, T
    p.scale = D**-0.5 if given["scale"] is None else given["scale"]
    p.normalise = given["use_qk_l2norm"] is None or given["use_qk_l2norm"]
    library.call_codes(ctypes.byref(p), pool.dtype == torch.int8, D, which, H // key_heads, key_heads, rows)


def called(library: Any, which: int, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The pool, its scales and the output as a call leaves them."""
    given = {key: x.clone() if torch.is_tensor(x) else x for key, x in given.items()}
    given["output"] = torch.full_like(given["v"], torch.nan)
    given["read"] = given["read_slots" if "read_slots" in given else "initial_slots"]
    given["write"] = given["write_slots" if "write_slots" in given else "state_slots"]
    call(library, which, given)
    return {key: given[key] for key in ("pool", "pool_scales", "output")}


def alone(library: Any, given: dict[str, Any], after: dict[str, torch.Tensor]) -> bool:
    """Whether each value channel has the same bits where every 16th one is given a value beyond all others: a warp of
    whole heads has sixteen rows."""
    v = given["v"].clone()
    v[..., ::16] = 1e30
    beside, rest = called(library, WHOLE, given | {"v": v}), torch.arange(v.shape[-1]) % 16 != 0
    same = [torch.equal(after[x][:, :, rest].double(), beside[x][:, :, rest].double()) for x in ("pool", "pool_scales")]
    return all(same) and torch.equal(after["output"][..., rest], beside["output"][..., rest])


def run(library: Any, which: int, name: str, row: str) -> dict[str, Any]:
    found = definition(name)
    (workload,) = (workload for workload in workloads(found) if workload.name == row)
    inputs = materialise(found, workload)
    given = arguments(found, inputs)
    before = {key: given[key].clone() for key in ("pool", "pool_scales")}
    want = run_reference(found, arguments(found, inputs, torch.float64))
    after = called(library, which, given)
    pool, scales, output = after.values()
    target = given["write_slots" if "write_slots" in given else "state_slots"]
    written = target[target >= 0].long()
    others = [slot for slot in range(len(pool)) if slot not in written.tolist()]
    kept = all(torch.equal(after[key][others].double(), x[others].double()) for key, x in before.items())
    dtype = str(pool.dtype).removeprefix("torch.")
    apart = (place(pool[written].double(), dtype) - place(want["pool"][written].double(), dtype)).abs()
    right = want["pool_scales"][written].double()
    off = (scales[written].double() - right).abs() / right.clamp(min=1e-300)
    error = (output.double() - want["output"].double()).norm() / want["output"].double().norm().clamp(min=1e-300)
    return {
        "row": row, "output": float(error), "zeros": torch.equal(output == 0, want["output"].bfloat16() == 0),
        "steps": float(apart.amax()) if len(written) else 0.0, "scales": float(off.amax()) if len(written) else 0.0,
        "moved": float((apart > 0).double().mean()) if len(written) else 0.0, "kept": kept,
        "alone": which != WHOLE or alone(library, given, after),
    }  # fmt: skip


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    for row in sys.argv[3:]:
        print(json.dumps(run(library, int(sys.argv[2]), *row.split(":"))), flush=True)


if __name__ == "__main__":
    main()
