"""Calls hopper_prefill with what it must refuse; run in a process of its own by test_hopper_refusals.py.

python hopper_refusals.py BUILD_DIR      prints a JSON object: case to what the call raised
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function

ROOT = Path(__file__).resolve().parents[3]
T, N, HQ, H, D = 200, 2, 1, 2, 128
BF16 = torch.bfloat16
Arguments = dict[str, Any]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (0.1 * torch.rand(shape, device="cuda")).to(dtype)


def arguments(interval: int | None = None, D: int = D) -> Arguments:
    given = {
        "q": tensor(T, HQ, D, dtype=BF16), "k": tensor(T, HQ, D, dtype=BF16), "v": tensor(T, H, D, dtype=BF16),
        "g": tensor(T, H), "beta": tensor(T, H), "cu_seqlens": torch.tensor([0, 70, T], device="cuda"),
        "initial_state": tensor(N, H, D, D), "scale": None,
    }  # fmt: skip
    if interval is not None:
        given |= {"checkpoint_cu_starts": torch.tensor([0, 1, 3], device="cuda"), "checkpoint_interval": interval}
    given |= {"output": tensor(T, H, D, dtype=BF16), "final_state": tensor(N, H, D, D)}
    return given | ({} if interval is None else {"checkpoints": tensor(3, H, D, D)})


def of_type(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda x: x.to(dtype)


CHANGES: list[tuple[str, str, Callable[[Any], Any]]] = [
    *((name, "float64", of_type(torch.float64)) for name in arguments() if name not in ("scale", "cu_seqlens")),
    ("q", "float32", of_type(torch.float32)),
    ("k", "float16", of_type(torch.float16)),
    ("output", "float16", of_type(torch.float16)),
    ("cu_seqlens", "int32", of_type(torch.int32)),
    *((name, "short", lambda x: x[:-1]) for name in arguments() if name != "scale"),
    *((name, "strided", lambda x: x.repeat_interleave(2, dim=0)[::2]) for name in arguments() if name != "scale"),
    *((name, "on a CPU", lambda x: x.cpu()) for name in arguments() if name != "scale"),
    ("q", "two dimensions", lambda x: x[0]),
    ("cu_seqlens", "empty", lambda x: x[:0]),
    ("k", "three heads", lambda x: x.repeat(1, 3, 1)),
    ("v", "no heads", lambda x: x[:, :0]),
    ("g", "one head", lambda x: x[:, :1].contiguous()),
    ("initial_state", "one head", lambda x: x[:, :1].contiguous()),
    ("k", "not aligned", lambda x: torch.cat([x.flatten(), x.flatten()])[1 : 1 + x.numel()].view(x.shape)),
]
BOUNDS = ([1, 70, T], [0, 70, T - 1], [0, T + 50, T], [0, -1, T], [0, T, 70], [-(2**40), 2**40, -7])
ROWS = ([0, 2, 3], [0, 1, 2], [1, 1, 3], [0, 2**40, 3], [-5, 1, 3])


def said(call: Callable[..., Any], given: Arguments) -> str:
    try:
        call(*given.values())
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    build = Path(sys.argv[1])
    entry = lambda name: load_function(ROOT / "solutions/hopper_prefill", f"kernel.cu::{name}", build)  # noqa: E731
    found = {}
    for name in ("gdn_prefill_k_last", "gdn_prefill_k_first"):
        for what, how, change in CHANGES:
            given = arguments()
            found[f"{name}: {what} {how}"] = said(entry(name), given | {what: change(given[what])})
        small = arguments() | {x: tensor(T, HQ, 64, dtype=BF16) for x in "qk"}
        found[f"{name}: v of another head size"] = said(entry(name), small)
        found[f"{name}: head size 96"] = said(entry(name), arguments(D=96))
    checkpoints = entry("gdn_prefill_checkpoints")
    for interval in (0, -64, 100, 2**40):
        found[f"interval {interval}"] = said(checkpoints, arguments(interval))
    for what, how, change in (
        ("checkpoints", "bfloat16", of_type(BF16)), ("checkpoints", "one head", lambda x: x[:, :1].contiguous()),
        ("checkpoints", "flat", lambda x: x.flatten()), ("checkpoint_cu_starts", "int32", of_type(torch.int32)),
        ("checkpoint_cu_starts", "short", lambda x: x[:-1]),
    ):  # fmt: skip
        given = arguments(64)
        found[f"{what} {how}"] = said(checkpoints, given | {what: change(given[what])})
    # Values on the device: seen with GDNSPEC_DEBUG=1 alone, and harmless without.
    for values in BOUNDS:
        given = arguments()
        found[f"debug cu_seqlens {values}"] = said(
            entry("gdn_prefill_k_last"), given | {"cu_seqlens": torch.tensor(values, device="cuda")}
        )
    for values in ROWS:
        given = arguments(64)
        rows = torch.tensor(values, device="cuda")
        found[f"debug checkpoint_cu_starts {values}"] = said(checkpoints, given | {"checkpoint_cu_starts": rows})
    found["right"] = said(entry("gdn_prefill_k_last"), arguments())
    found["right with checkpoints"] = said(checkpoints, arguments(64))
    half = {x: y.half() if getattr(y, "dtype", None) == BF16 else y for x, y in arguments().items()}
    found["right in float16"] = said(entry("gdn_prefill_k_last"), half)
    found["right with heads of 64"] = said(entry("gdn_prefill_k_last"), arguments(D=64))
    found["right with heads of 64 and checkpoints"] = said(checkpoints, arguments(64, D=64))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
