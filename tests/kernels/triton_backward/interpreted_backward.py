"""Calls of triton_backward that no workload makes, in Triton's interpreter. The arguments are an entry's name, the type
of q, a folder for builds, a number of parts, and the lengths of sequences. If the number is not 0, both walks go side
by side, and gradients of states are kept of so many parts.

Resets inside a chunk and at its end, and rows behind the last sequence, which hold NaN. Outputs start as NaN. With
GDNSPEC_TEST_ZERO_BETA in the environment every third token has beta = 0, and all of the last sequence. With
GDNSPEC_TEST_GROWTH a state decays to 2^-200 of itself but for one direction, in which it grows. It prints the largest
error of each gradient beside the reference in float64, relative to the gradient's norm, and the way that was taken
(room.py).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from gdnspec.build.interpreter import correct_interpreter

correct_interpreter()

import torch  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402

from reference.gdn import backward  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
KEPT, LENGTHS, BEHIND, D = int(sys.argv[4]), [int(text) for text in sys.argv[5:]], 7, 32
OUTPUTS = ("dq", "dk", "dv", "dg", "dbeta", "dh0")


def inputs(entry: str, dtype: torch.dtype) -> dict[str, torch.Tensor | float]:
    torch.manual_seed(5)
    HQ, HK, HV = (2, 1, 1) if entry == "backward_k_first" else (1, 1, 2)
    H, N, used = max(HQ, HV), len(LENGTHS), sum(LENGTHS)
    T = used + BEHIND
    q, k = (torch.nn.functional.normalize(torch.randn(T, heads, D), dim=-1).to(dtype) for heads in (HQ, HK))
    v, do = (torch.randn(T, heads, D).to(dtype) for heads in (HV, H))
    alpha, beta = torch.empty(T, H).uniform_(0.5, 1), torch.empty(T, H).uniform_(0, 1.9)
    alpha[[3, 4, 63, 64, 67]] = 0.0
    if "GDNSPEC_TEST_ZERO_BETA" in os.environ:
        beta[::3] = 0.0
        beta[sum(LENGTHS[:-1]) :] = 0.0
    if "GDNSPEC_TEST_GROWTH" in os.environ:  # 20 gates of 2^-10, while one long key makes a state grow nearly as much
        few = slice(70, 90)
        alpha[:], beta[:], do[:] = 1.0, 0.0, 0.0
        alpha[few], beta[few] = 2.0**-10, 1.0
        k[few] = 20 * k[70]
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    given = {
        "q": q, "k": k, "v": v, "g": alpha if entry == "backward_k_last" else alpha.log(), "beta": beta,
        "cu_seqlens": bounds, "initial_state": torch.randn(N, H, D, D), "scale": None, "do": do,
        "dht": torch.randn(N, H, D, D),
    }  # fmt: skip
    for name in ("q", "k", "v", "g", "beta", "do"):
        given[name][used:] = torch.nan
    return given


def empty_outputs(given: dict[str, torch.Tensor | float]) -> dict[str, torch.Tensor]:
    like = {"dq": "q", "dk": "k", "dv": "v", "dg": "g", "dbeta": "beta", "dh0": "initial_state"}
    return {name: torch.full_like(given[of], torch.nan) for name, of in like.items()}


def main() -> None:
    entry, dtype, build = sys.argv[1], getattr(torch, sys.argv[2]), Path(sys.argv[3])
    given = inputs(entry, dtype)
    found = empty_outputs(given)
    call = load_function(ROOT / "solutions/triton_backward", f"kernel.py::{entry}", build)
    workspace, ways = call.__globals__["workspace"], []
    if KEPT:
        workspace.__globals__["KEPT"] = (KEPT,)

    def seen(size: Any, inputs: int, *of: Any) -> Any:
        way, work = workspace(size, 2**40 if KEPT else inputs, *of)
        ways.append(way)
        return way, work

    call.__globals__["workspace"] = seen
    call(**given, **found)
    exact = {name: x.double() if name != "cu_seqlens" and x is not None else x for name, x in given.items()}
    expected = getattr(backward, f"prefill_{entry}")(**exact)
    behind = [name for name in OUTPUTS[:-1] if not (found[name][-BEHIND:] == 0).all()]
    errors = {}
    for name, wanted in zip(OUTPUTS, expected, strict=True):
        rows = slice(None if name == "dh0" else sum(LENGTHS))
        errors[name] = float((found[name][rows].double() - wanted[rows]).norm() / wanted[rows].norm())
    empty = [n for n, length in enumerate(LENGTHS) if length == 0]
    kept = bool((found["dh0"][empty] == given["dht"][empty]).all())
    (way,) = ways
    said = {"errors": errors, "not zero behind": behind, "empty sequences hand dht on": kept}
    nothing = (given["beta"][: sum(LENGTHS)] == 0).all(1)
    last = slice(sum(LENGTHS[:-1]), sum(LENGTHS))
    said |= {"way": list(way), "dk of the last sequence": float(found["dk"][last].abs().sum())}
    said |= {"dv of beta = 0": float(found["dv"][: sum(LENGTHS)][nothing].abs().sum())}
    print(json.dumps(said))


main()
