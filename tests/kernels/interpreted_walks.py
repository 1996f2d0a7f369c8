"""The walks of the convolution and of its gradients with the block sizes of a GPU, in Triton's interpreter, which by
itself takes others. The arguments are a folder for builds and how many batches are drawn.

It prints the largest error of each output, relative to its norm, beside `gdnspec.ops` in float64. Rows that no sequence
has, and those of skipped ones, hold NaN. An address outside of what a kernel was given is an error.
"""

import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdnspec.build.interpreter import correct_interpreter

correct_interpreter()

import torch  # noqa: E402
from gdnspec import ops  # noqa: E402
from gdnspec.build.loader import load_function  # noqa: E402
from torch import Tensor  # noqa: E402
from watched_addresses import watch_addresses  # noqa: E402

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
FORWARD = [(8, 8, 4, None), (32, 8, 4, None), (64, 8, 8, None)]  # the last of all is a limit on registers
BACKWARD = [(16, 4, 4), (32, 4, 8), (64, 4, 8), (128, 4, 8)]
BEHIND = 3


def bounds(draw: random.Random, block: int) -> Tensor:
    """Of up to ten sequences, empty ones and ones shorter than a kernel among them. Every other batch begins with two
    that end one and two tokens before a walk does."""
    lengths = [draw.choice((0, 1, 2, 3, 5, 8, 13)) for _ in range(draw.randint(1, 5))]
    if draw.random() < 0.5:
        lengths = [block - 1, block - 1, 4, *lengths]
    else:
        lengths += [draw.randint(16, 80) for _ in range(draw.randint(1, 2))]
        draw.shuffle(lengths)
    return torch.tensor([0, *lengths]).cumsum(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


def exact(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: x.double().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in given.items()
    }


def far(found: Tensor, wanted: Tensor) -> float:
    error = float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))
    return error if math.isfinite(error) else math.inf


def forward(entry: Callable[..., None], starts: Tensor, draw: random.Random) -> dict[str, float]:
    count, T, C, W = len(starts) - 1, int(starts[-1]), 10, draw.randint(2, 4)
    slots = torch.randperm(count + 2)[:count].int()
    slots[torch.rand(count) < 0.1] = -1
    given = {
        "x": normal(T, C), "weight": normal(C, W), "bias": normal(C) if draw.random() < 0.8 else None,
        "cu_seqlens": starts, "conv_states": normal(count + 2, C, W - 1), "slots": slots,
        "has_initial_state": torch.rand(count) < 0.7,
    }  # fmt: skip
    pool = given["conv_states"].double()
    wanted = ops.causal_conv1d(*(exact(given) | {"conv_states": pool}).values())
    skipped = (slots < 0).repeat_interleave(starts.diff())
    given["x"][skipped] = math.nan
    given["x"] = torch.cat([given["x"], torch.full((BEHIND, C), math.nan)])
    output = torch.full_like(given["x"], math.nan)
    entry(**given, output=output)
    assert torch.equal(given["conv_states"], pool.float()), "states are inputs, bit for bit"
    return {"output": far(output[:T], wanted.detach())}


def of_convolution(starts: Tensor, draw: random.Random) -> dict[str, Any]:
    C, W = 10, draw.randint(2, 4)
    return {
        "x": normal(int(starts[-1]), C), "weight": normal(C, W), "bias": normal(C), "cu_seqlens": starts,
        "conv_states": normal(len(starts) - 1, C, W - 1), "slots": None,
        "has_initial_state": torch.ones(len(starts) - 1, dtype=torch.bool),
    }  # fmt: skip


def gradients(call: Callable[..., Any], given: dict[str, Any]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Cotangents of the outputs and of the states afterwards, and the gradients of the inputs."""
    inputs = exact(given)
    states = inputs["conv_states"]
    pool = states.clone()
    outputs = call(*(inputs | {"conv_states": pool}).values())
    outputs = [*(outputs if isinstance(outputs, tuple) else [outputs]), pool]
    cotangents = [torch.randn(x.shape) for x in outputs]
    leaves = {name: x for name, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad}
    found = torch.autograd.grad(outputs, list(leaves.values()), [x.double() for x in cotangents])
    return cotangents, dict(zip(leaves, found, strict=True))


def longer(x: Tensor) -> Tensor:
    return torch.cat([x, torch.full((BEHIND, *x.shape[1:]), math.nan)])


def compared(entry: Callable[..., None], given: dict[str, Any], outputs: dict[str, str], wanted: dict[str, Tensor],
             tokens: tuple[str, ...]) -> dict[str, float]:  # fmt: skip
    """`outputs`: which input each is the gradient of. `tokens`: the inputs that have rows of tokens."""
    given = {name: longer(x) if name in tokens else x for name, x in given.items()}
    like = {name: torch.full_like(given[of], math.nan) for name, of in outputs.items()}
    entry(**given, **like)
    for name, of in outputs.items():
        if of in tokens:
            assert not like[name][-BEHIND:].any(), f"{name} behind the last sequence is not zero"
            like[name] = like[name][:-BEHIND]
    return {name: far(like[name], wanted["conv_states" if name == "dh0" else of]) for name, of in outputs.items()}


def backward(entry: Callable[..., None], starts: Tensor, draw: random.Random) -> dict[str, float]:
    given = of_convolution(starts, draw)
    (do, dht), wanted = gradients(ops.causal_conv1d, given)
    inputs = {name: given[name] for name in ("x", "weight", "bias", "cu_seqlens")}
    inputs |= {"initial_state": given["conv_states"], "do": do, "dht": dht}
    outputs = {"dx": "x", "dweight": "weight", "dbias": "bias", "dh0": "initial_state"}
    return compared(entry, inputs, outputs, wanted, ("x", "do"))


def backward_of_gates(entry: Callable[..., None], starts: Tensor, draw: random.Random) -> dict[str, float]:
    H, D, T, W, count = 2, 4, int(starts[-1]), draw.randint(2, 4), len(starts) - 1
    C = (2 + H) * D
    given = {
        "x": normal(T, C), "conv_weight": normal(C, W), "conv_bias": normal(C), "a": normal(T, H), "b": normal(T, H),
        "A_log": normal(H), "dt_bias": normal(H), "cu_seqlens": starts, "conv_states": normal(count, C, W - 1),
        "slots": None, "has_initial_state": torch.ones(count, dtype=torch.bool), "head_dim": D,
    }  # fmt: skip
    cotangents, wanted = gradients(ops.causal_conv1d_gates, given)
    inputs = dict(list(given.items())[:8]) | {"initial_state": given["conv_states"]}
    inputs |= dict(zip(("dq", "dk", "dv", "dg", "dbeta", "dht"), cotangents, strict=True))
    names = ("x", "conv_weight", "conv_bias", "a", "b", "A_log", "dt_bias")
    outputs = {f"d{name}": name for name in names} | {"dh0": "initial_state"}
    return compared(entry, inputs, outputs, wanted, ("x", "a", "b", "dq", "dk", "dv", "dg", "dbeta"))


WALKS = {
    ("triton_layer", "conv1d.py::conv1d_prefill"): (forward, FORWARD),
    ("triton_layer_backward", "conv1d.py::conv1d_backward"): (backward, BACKWARD),
    ("triton_layer_backward", "conv_gates.py::conv_gates_backward"): (backward_of_gates, BACKWARD),
}


def main() -> None:
    build, count = Path(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(1)
    torch.manual_seed(1)
    watch_addresses()
    errors: dict[str, float] = defaultdict(float)
    for (solution, source), (asked, blockings) in WALKS.items():
        entry = load_function(SOLUTIONS / solution, source, build / solution)
        for i in range(count):
            blocking = blockings[i % len(blockings)]
            entry.__globals__["blocking"] = lambda *sizes, blocking=blocking: blocking
            for output, error in asked(entry, bounds(draw, blocking[0]), draw).items():
                name = f"{source.partition('::')[2]}, {output}"
                errors[name] = max(errors[name], error)
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
