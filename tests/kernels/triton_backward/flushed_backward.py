"""dh0 behind gates whose product is subnormal, in Triton's interpreter, with an exp2 that flushes subnormal results to
0 as a GPU's does: the argument is a folder for builds.

All of dh0 has the decay 2^-128, which float32 still holds. It prints the error beside the reference in float64,
relative to the norm.
"""

import json
import sys
from pathlib import Path

from gdnspec.build.interpreter import correct_interpreter

correct_interpreter()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from reference.gdn import backward  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def flushed_exp2(self: InterpreterBuilder, x: TensorHandle) -> TensorHandle:
    found = np.exp2(x.data)
    return TensorHandle(np.where(found < 2.0**-126, np.float32(0), found), x.dtype.scalar)


def main() -> None:
    InterpreterBuilder.create_exp2 = flushed_exp2
    torch.manual_seed(3)
    T, D = 2, 32
    q, k, v, do = (torch.nn.functional.normalize(torch.randn(T, 1, D), dim=-1) for _ in range(4))
    do[0] = 0.0  # the first token reads nothing
    given = {
        "q": q, "k": k, "v": v, "g": torch.tensor([[2.0**-120], [2.0**-8]]), "beta": torch.zeros(T, 1),
        "cu_seqlens": torch.tensor([0, T]), "initial_state": torch.zeros(1, 1, D, D), "scale": 1.0, "do": do,
        "dht": torch.zeros(1, 1, D, D),
    }  # fmt: skip
    like = {"dq": "q", "dk": "k", "dv": "v", "dg": "g", "dbeta": "beta", "dh0": "initial_state"}
    found = {name: torch.full_like(given[of], torch.nan) for name, of in like.items()}
    load_function(ROOT / "solutions/triton_backward", "kernel.py::backward_k_last", Path(sys.argv[1]))(**given, **found)
    exact = {name: x.double() if getattr(x, "is_floating_point", bool)() else x for name, x in given.items()}
    expected = backward.prefill_backward_k_last(**exact)[-1]
    print(json.dumps(float((found["dh0"].double() - expected).norm() / expected.norm())))


main()
