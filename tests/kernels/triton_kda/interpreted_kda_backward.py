"""Gradients of triton_kda that no workload asks for, in Triton's interpreter. The arguments are a folder for builds, a
head size, the type of q, and the lengths of sequences.

Resets of single channels and of all, channels that last beside others, zero keys of a channel, and rows behind the last
sequence, which hold NaN. Outputs start as NaN. It prints the largest errors beside the reference in float64, relative
to the norm of each gradient, and what is not as it must be exactly.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from gdnspec.build.interpreter import correct_interpreter

correct_interpreter()

import torch  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402

from reference.kda import backward  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
D, DTYPE, LENGTHS, BEHIND = int(sys.argv[2]), getattr(torch, sys.argv[3]), [int(x) for x in sys.argv[4:]], 7
HQ, H = 1, 2
OUTPUTS = ("dq", "dk", "dv", "dg", "dbeta", "dh0")
LIKE = dict(zip(OUTPUTS, ("q", "k", "v", "g", "beta", "dht"), strict=True))


def inputs() -> dict[str, Any]:
    """Without an initial state. Channels of the first value head last, those of the second are of all kinds."""
    draw = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    N, used = len(LENGTHS), sum(LENGTHS)
    T = used + BEHIND
    q, k = (torch.nn.functional.normalize(normal(T, HQ, D), dim=-1).to(DTYPE) for _ in range(2))
    g = -0.05 * torch.rand(T, H, D, generator=draw)
    g[:, 1] *= torch.logspace(-2, 4, D)
    g[:, 1][torch.rand(T, D, generator=draw) < 0.1] = -math.inf
    g[20:60:13, 1] = -math.inf
    k[:, :, 3] = 0.0
    given = {
        "q": q, "k": k, "v": normal(T, H, D).to(DTYPE), "g": g, "beta": 1.9 * torch.rand(T, H, generator=draw),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32), "initial_state": None, "scale": None,
        "do": normal(T, H, D).to(DTYPE), "dht": normal(N, H, D, D),
    }  # fmt: skip
    for name in ("q", "k", "v", "g", "beta", "do"):
        given[name][used:] = torch.nan
    return given


def main() -> None:
    entry = load_function(ROOT / "solutions/triton_kda", "backward.py::backward_k_last", Path(sys.argv[1]))
    given, used = inputs(), sum(LENGTHS)
    found = {name: torch.full_like(given[like], torch.nan) for name, like in LIKE.items()}
    entry(**given, **found)
    exact = {name: x.double() if isinstance(x, torch.Tensor) and name != "cu_seqlens" else x
             for name, x in given.items()}  # fmt: skip
    expected = dict(zip(OUTPUTS, backward.prefill_backward_k_last(**exact), strict=True))
    errors, wrong = {}, []
    for name, wanted in expected.items():
        rows = slice(None if name == "dh0" else used)
        pairs = zip(wanted[rows].unbind(1), found[name][rows].unbind(1), strict=True)
        errors[name] = max(float((y.double() - x).norm() / x.norm()) for x, y in pairs)  # by heads
        if name != "dh0" and not (found[name][used:] == 0).all():
            wrong.append(f"{name} behind")
    if not (found["dg"][:used][expected["dg"][:used] == 0] == 0).all():
        wrong.append("dg where nothing crosses")
    empty = [n for n, length in enumerate(LENGTHS) if length == 0]
    if not (found["dh0"][empty] == given["dht"][empty]).all():
        wrong.append("dh0 of empty sequences")
    print(json.dumps({"errors": errors, "wrong": wrong}))


main()
