"""A long sequence whose keys replace a large given state, without decay, once where a kernel walks segments side by
side, and once with so many heads, all alike, that it walks the whole sequence: in Triton's interpreter. The arguments
are a solution, an entry in its sources, and a folder for builds.

It prints the errors of each output relative to its norm, in segments and as a whole, beside the reference of gated
delta net in float64: with gates of 1 Kimi Delta Attention is the same.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdnspec.build.interpreter import correct_interpreter

correct_interpreter()

import torch  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402

from reference.gdn import backward, gated_delta_net  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
T, D, LARGE, SEGMENT = 320, 32, 16.0, 128
RESULTS = {"output": "v", "final_state": "initial_state"}
GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dh0")


def inputs(H: int, kda: bool, back: bool) -> dict[str, Any]:
    """The keys of a segment, written to with beta = 1, leave 2% of a state of 32 channels."""
    draw = torch.Generator().manual_seed(3)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(T, 1, D), dim=-1) for _ in range(2))
    given = {"q": q, "k": k, "v": normal(T, 1, D), "do": normal(T, 1, D)}
    given = {name: x.expand(T, H, D).to(torch.bfloat16).contiguous() for name, x in given.items()}
    states = {name: normal(1, 1, D, D).expand(1, H, D, D).contiguous() for name in ("initial_state", "dht")}
    states["dht" if back else "initial_state"] *= LARGE
    g = torch.zeros(T, H, D) if kda else torch.ones(T, H)
    given |= states | {"g": g, "beta": torch.ones(T, H), "cu_seqlens": torch.tensor([0, T], dtype=torch.int32)}
    return (
        given | {"scale": None}
        if back
        else {name: x for name, x in given.items() if name not in ("do", "dht")} | {"scale": None}
    )


def called(entry: Callable[..., None], H: int, kda: bool, back: bool) -> dict[str, torch.Tensor]:
    given = inputs(H, kda, back)
    like = dict(zip(GRADIENTS, ("q", "k", "v", "g", "beta", "dht"), strict=True)) if back else RESULTS
    found = {name: torch.full_like(given[of], torch.nan) for name, of in like.items()}
    entry(**given, **found)
    return {name: x for name, x in found.items() if name != "dg"}


def main() -> None:
    solution, source, build = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    kda, back = solution == "triton_kda", "backward" in source
    exact = {name: x.double() if isinstance(x, torch.Tensor) and name != "cu_seqlens" else x
             for name, x in inputs(1, False, back).items()}  # fmt: skip
    if back:
        expected = dict(zip(GRADIENTS, backward.prefill_backward_k_last(**exact), strict=True))
    else:
        expected = dict(zip(RESULTS, gated_delta_net.prefill_k_last(**exact), strict=True))
    entry = load_function(ROOT / "solutions" / solution, source, build)
    errors = {}
    for way, H in (("segments", 1), ("whole", 4)):
        for name, x in called(entry, H, kda, back).items():
            # Where the state has just been handed on: in the second segment, or in the one before the last.
            rows = slice(SEGMENT, 2 * SEGMENT) if x.shape[0] == T else slice(None)
            found, is_to_be = x[rows, :1].double(), expected[name][rows]
            errors.setdefault(name, {})[way] = float((found - is_to_be).norm() / is_to_be.norm())
    print(json.dumps(errors))


main()
