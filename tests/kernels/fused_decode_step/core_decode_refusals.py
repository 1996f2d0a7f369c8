"""Calls fused_decode_step with what it must refuse; run in a process of its own by test_core_decode_refusals.py.

python core_decode_refusals.py BUILD_DIR      prints a JSON object: case to what the call raised
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function

ROOT = Path(__file__).resolve().parents[3]
B, HK, H, D, W, SLOTS = 3, 1, 2, 64, 4, 6
C = (2 * HK + H) * D
BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32
Arguments = dict[str, Any]


def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return (torch.rand(shape, device="cuda") - 0.5).to(dtype)


def slots(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=I32, device="cuda")


def arguments() -> Arguments:
    return {
        "qkv": tensor(B, C), "z": tensor(B, H * D), "a": tensor(B, H), "b": tensor(B, H), "conv_weight": tensor(C, W),
        "conv_bias": tensor(C), "A_log": tensor(H, dtype=F32), "dt_bias": tensor(H), "norm_weight": tensor(D),
        "conv_states": tensor(SLOTS, C, W - 1), "conv_slots": slots(4, 0, 2),
        "recurrent_states": tensor(SLOTS, H, D, D, dtype=F32), "state_slots": slots(1, 5, 3),
        "output": torch.full((B, H * D), torch.nan, dtype=BF16, device="cuda"),
    }  # fmt: skip


def wide(x: torch.Tensor, gap: int) -> torch.Tensor:
    """The same slots, so many elements farther apart."""
    memory = x.new_zeros(len(x), x[0].numel() + gap)
    memory[:, : x[0].numel()] = x.flatten(1)
    return memory.as_strided(x.shape, (memory.stride(0), *x.stride()[1:]))


def changes() -> dict[str, Arguments]:
    good = arguments()
    states, conv = good["recurrent_states"], good["conv_states"]
    made: dict[str, Arguments] = {}
    for name, x in good.items():
        other = torch.float16 if x.dtype != I32 else torch.int64
        made[f"{name}: {other}"] = {name: x.to(other)}
        made[f"{name}: on a CPU"] = {name: x.cpu()}
        made[f"{name}: a dimension more"] = {name: x[None]}
        if name not in ("conv_states", "recurrent_states"):
            made[f"{name}: one less"] = {name: x[:-1]}
            made[f"{name}: not contiguous"] = {name: x.repeat_interleave(2, dim=0)[::2]}
    made |= {
        "kernel width 5": {"conv_weight": tensor(C, 5), "conv_states": tensor(SLOTS, C, 4)},
        "kernel width 1": {"conv_weight": tensor(C, 1), "conv_states": tensor(SLOTS, C, 0)},
        "conv_states of another width": {"conv_states": tensor(SLOTS, C, W)},
        "conv_states channels last": {"conv_states": tensor(SLOTS, W - 1, C).mT},
        "conv_states that overlap": {"conv_states": conv[:1].expand(SLOTS, -1, -1)},
        "conv_states in steps of one": {"conv_states": wide(conv, 1)},
        "states that overlap": {"recurrent_states": states[:1].expand(SLOTS, -1, -1, -1)},
        "states in steps of one": {"recurrent_states": wide(states, 1)},
        "states [K, V]": {"recurrent_states": states.mT},
        "head size 32": {"recurrent_states": tensor(SLOTS, H, 32, 32, dtype=F32)},
        "no whole q and k": {"qkv": tensor(B, C + D)},
        "values alone": {"qkv": tensor(B, H * D)},
        "heads that do not divide": {"qkv": tensor(B, C + 4 * D)},
        "z misaligned": {"z": tensor(B * H * D + 1)[1:].view(B, H * D)},
        "debug: slot past the end": {"conv_slots": slots(4, SLOTS, 2)},
        "debug: slot -2": {"state_slots": slots(1, -2, 3)},
        "debug: slot twice": {"state_slots": slots(1, 3, 3)},
        "debug: skipped by half": {"conv_slots": slots(4, -1, 2)},
    }
    return made


def main() -> None:
    function = load_function(ROOT / "solutions/fused_decode_step", "kernel.cu::gdn_core_decode", Path(sys.argv[1]))

    def said(given: Arguments) -> str:
        try:
            function(*given.values())
            torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    found = {name: said(arguments() | change) for name, change in changes().items()}
    empty = {name: arguments()[name][:0] for name in ("qkv", "z", "a", "b", "conv_slots", "state_slots", "output")}
    found["empty batch"] = said(arguments() | empty)
    given = arguments()
    given |= {name: wide(given[name], 64) for name in ("conv_states", "recurrent_states")}
    found["gaps between slots"] = said(given)

    # Slots that are none, in either pool: those rows are zero, and nothing changes but what row 0 names.
    given = arguments() | {"conv_slots": slots(4, SLOTS, 2), "state_slots": slots(1, 5, -7)}
    before = {name: given[name].clone() for name in ("conv_states", "recurrent_states")}
    found["outside"] = said(given)
    same = [[n for n in range(SLOTS) if not torch.equal(given[name][n], x[n])] for name, x in before.items()]
    found["changed"] = str([*same, given["output"][1:].any().item()])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
