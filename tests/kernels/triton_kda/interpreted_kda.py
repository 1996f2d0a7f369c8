"""Runs triton_kda in Triton's interpreter against the recurrence in float64. The arguments are a folder for builds and
kinds of gates.

It prints, for each kind of gates and each way to make scores, the relative errors of output and state.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.interpreter import correct_interpreter
from gdnspec.build.loader import load_function

FOLDER = Path(__file__).resolve().parents[3] / "solutions/triton_kda"
D, LENGTHS = 64, (70, 0, 40)
KINDS = {
    "slow": torch.full((D,), 0.05),  # one quotient serves a chunk
    "half": torch.full((D,), 2.0),  # one serves a chunk with its border in the middle, 32 tokens before and behind it
    "16": torch.full((D,), 3.3),  # so many before and behind a border
    "8": torch.full((D,), 6.5),
    "4": torch.full((D,), 12.0),  # one serves each block of 8 tokens
    "2": torch.full((D,), 20.0),
    "fast": torch.logspace(-3, 2, D),  # none: channels that never forget beside some that forget at once
}


def given(rates: torch.Tensor, resets: bool) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    total, count = sum(LENGTHS), len(LENGTHS)
    g = -rates * torch.rand(total, 1, D, generator=draw)
    if resets:
        g[torch.rand(g.shape, generator=draw) < 0.05] = -math.inf
        g[15::16] = -math.inf
    v = normal(total, 1, D).bfloat16()
    q, k = (torch.nn.functional.normalize(normal(total, 1, D), dim=-1).bfloat16() for _ in range(2))
    return {
        "q": q, "k": k, "v": v, "g": g, "beta": torch.rand(total, 1, generator=draw),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "initial_state": normal(count, 1, D, D), "scale": None,
        "output": torch.full_like(v, math.nan), "final_state": torch.full((count, 1, D, D), math.nan),
    }  # fmt: skip


def recurrence(x: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, g, beta, states = (x[name].double() for name in ("q", "k", "v", "g", "beta", "initial_state"))
    output, states, bounds = torch.zeros_like(v), states.clone(), x["cu_seqlens"].tolist()
    for n, (S,) in enumerate(states):
        for t in range(bounds[n], bounds[n + 1]):
            S *= g[t, 0].exp()
            S += torch.outer(beta[t, 0] * (v[t, 0] - S @ k[t, 0]), k[t, 0])
            output[t, 0] = D**-0.5 * S @ q[t, 0]
    return output, states


def from_raw_gates(entry: Any) -> list[float]:
    """Errors of prefill from raw gates with a lower bound, of queries and keys that it normalises."""
    x = given(torch.ones(D), resets=False)
    draw = torch.Generator().manual_seed(2)
    a, bias = (torch.randn(*shape, generator=draw) for shape in (x["g"].shape, (1, D)))
    b, A_log = torch.randn(x["beta"].shape, generator=draw), torch.full((1,), 0.3)
    raw = {"a": a.bfloat16(), "b": b.bfloat16(), "A_log": A_log, "dt_bias": bias, "lower_bound": -5.0}
    x |= {"q": (3 * x["q"].float()).bfloat16(), "k": (0.1 * x["k"].float()).bfloat16()}
    entry(**{name: y for name, y in x.items() if name not in ("g", "beta")}, **raw, use_qk_l2norm=None)
    unit = {name: y * (y * y).sum(-1, keepdim=True).add(1e-6).rsqrt() for name in "qk" for y in (x[name].double(),)}
    g = -5.0 * torch.sigmoid(A_log.double().exp() * (raw["a"].double() + bias))
    expected = recurrence(x | unit | {"g": g, "beta": raw["b"].double().sigmoid()})
    errors = zip((x["output"], x["final_state"]), expected, strict=True)
    return [float((a.double() - b).norm() / b.norm()) for a, b in errors]


def main() -> None:
    correct_interpreter()
    entry = load_function(FOLDER, "kernel.py::prefill_k_last", Path(sys.argv[1]))
    module: Any = sys.modules[entry.__module__]
    chosen = module.blocking(D, len(LENGTHS), 1, sum(LENGTHS))
    found = {}
    for kind in sys.argv[2:]:
        rates = KINDS[kind]
        for resets in (False, True):
            x = given(rates, resets)
            expected = recurrence(x)
            for guard in (True,) if resets else (False, True):
                module.blocking = lambda *_, guard=guard: chosen._replace(guard=guard)
                entry(**x)
                errors = zip((x["output"], x["final_state"]), expected, strict=True)
                found[f"{kind}, {resets}, {guard}"] = [float((a.double() - b).norm() / b.norm()) for a, b in errors]
    module.blocking = lambda *_: chosen
    x = given(torch.zeros(D), resets=False)
    expected = recurrence(x)
    entry(**x | {"g": None})
    errors = zip((x["output"], x["final_state"]), expected, strict=True)
    found["no gates"] = [float((a.double() - b).norm() / b.norm()) for a, b in errors]
    found["raw gates"] = from_raw_gates(load_function(FOLDER, "kernel.py::prefill_raw_gates", Path(sys.argv[1])))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
