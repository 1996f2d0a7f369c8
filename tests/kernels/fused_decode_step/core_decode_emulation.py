"""Calls the emulated kernel of fused_decode_step and compares it with the reference; run by
test_core_decode_emulation.py in a process of its own, which the emulator ends where it finds an error.

python core_decode_emulation.py LIBRARY SEED CASE..      prints a line a case; a case: PRESET:BLOCKS_A_HEAD:ROWS:REGIME
"""

import ctypes
import sys
from typing import Any

import torch
from gdnspec.catalog.definitions import definition, presets
from gdnspec.inputs.materialise import materialise
from helpers_unit import arguments, line, run_reference

FOUND = definition("gdn_core_decode")
POINTERS = ("qkv", "z", "a", "b", "conv_weight", "conv_bias", "A_log", "dt_bias", "norm_weight", "conv_states",
            "recurrent_states")  # fmt: skip
NUMBERS = ("H", "group", "conv_dim", "num_conv_slots", "num_state_slots", "early_rows")


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((f"{name}_stride", ctypes.c_int64) for name in ("conv", "state")),
        *((name, ctypes.c_void_p) for name in ("conv_slots", "state_slots", "output")),
        *((name, ctypes.c_int) for name in NUMBERS),
        ("scale", ctypes.c_float),
    ]


def padded(x: torch.Tensor) -> torch.Tensor:
    """The same slots, with a gap of NaNs between them."""
    of_slot = x[0].numel()
    memory = torch.full((len(x), of_slot + 64), torch.nan, dtype=x.dtype)
    memory[:, :of_slot] = x.flatten(1)
    return memory


def run(library: Any, preset: str, most: int, rows: int, regime: str, seed: int) -> str:
    omit = ["conv_bias"] if rows % 2 else []
    given = arguments(FOUND, materialise(FOUND, line(FOUND, preset, regime, batch=rows, omit=omit)))
    if rows > 2:  # -1, and slots that are none
        for name, bad in (("conv_slots", [-1, 1 << 30]), ("state_slots", [-1, 2])):
            given[name][:2] = torch.tensor(bad, dtype=torch.int32)
    axes = presets()[preset].axes
    HK, H, D, W = (axes[name] for name in ("num_k_heads", "num_v_heads", "key_head_dim", "kernel_width"))
    seen = {name: given[name].clone() for name in ("conv_slots", "state_slots")}
    skipped = (seen["conv_slots"] < 0) | (seen["conv_slots"] >= len(given["conv_states"]))
    for name in seen:
        seen[name][skipped] = -1
    wide = {name: x.double() if x is not None and x.is_floating_point() else x for name, x in given.items()}
    wanted = run_reference(FOUND, wide | seen)

    pools = {name: padded(given[name]) for name in ("conv_states", "recurrent_states")}
    output = torch.full((rows, H * D), torch.nan, dtype=torch.bfloat16)
    tensors = given | pools | {"output": output}
    p = Arguments()
    for name in (*POINTERS, "conv_slots", "state_slots", "output"):
        setattr(p, name, None if tensors[name] is None else tensors[name].data_ptr())
    p.conv_stride, p.state_stride = (pool.stride(0) for pool in pools.values())
    p.H, p.group, p.conv_dim, p.early_rows, p.scale = H, H // HK, given["qkv"].shape[1], 1, D**-0.5
    p.num_conv_slots, p.num_state_slots = (len(pool) for pool in pools.values())
    library.core_decode(ctypes.byref(p), D, W, most, HK, rows, seed)

    worst = float((output.double() - wanted["output"]).norm() / wanted["output"].norm())
    after = pools["recurrent_states"][:, : H * D * D].view(-1, H, D, D)
    apart = (after.double() - wanted["recurrent_states"]).flatten(1).norm(dim=1)
    state = float((apart / wanted["recurrent_states"].flatten(1).norm(dim=1)).max())
    conv = pools["conv_states"][:, :-64].reshape(given["conv_states"].shape)
    kept = [n for n in range(len(after)) if n not in seen["state_slots"].tolist()]
    faults = [
        what for what, right in {
            f"output off by {worst:.2g}": worst < 4e-3, f"state off by {state:.2g}": state < 1e-5,
            "state of the convolution": torch.equal(conv.double(), wanted["conv_states"]),
            "a slot that nobody names": torch.equal(after[kept], given["recurrent_states"][kept]),
            "a gap": all(bool(pool[:, -64:].isnan().all()) for pool in pools.values()),
            "a row that is skipped": not bool(output[skipped].any()),
        }.items() if not right
    ]  # fmt: skip
    return f"WRONG: {', '.join(faults)}" if faults else f"right: output {worst:.2g}, state {state:.2g}"


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    for case in sys.argv[3:]:
        preset, most, rows, regime = case.split(":")
        print(case, run(library, preset, int(most), int(rows), regime, int(sys.argv[2])), flush=True)


if __name__ == "__main__":
    main()
