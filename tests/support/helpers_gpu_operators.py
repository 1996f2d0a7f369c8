"""Whether an operator computes on a GPU what it computes on a CPU."""

from dataclasses import replace

import torch
from helpers_operators import Call, gradients
from torch import Tensor

NEAR = 2e-2  # kernels round to bfloat16 inside


def same_outputs(call: Call) -> None:
    """Called, and then recorded in a CUDA graph and replayed."""
    wanted = call.outputs(*call.copy())
    args = _there(call).args
    _near(call.outputs(*args), wanted)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call.outputs(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call.outputs(*args)
    graph.replay()
    _near(outputs, wanted)


def same_gradients(call: Call) -> None:
    """Against those that a CPU computes in float64."""
    found, wanted = gradients(_there(call)), gradients(call, torch.float64)
    for i, gradient in found.items():
        far = (gradient.cpu().double() - wanted[i]).norm() / wanted[i].norm().clamp(min=1e-30)
        assert far < NEAR, (i, float(far))


def _there(call: Call) -> Call:
    return replace(call, args=tuple(x.cuda() if isinstance(x, Tensor) else x for x in call.args))


def _near(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for output, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(output.cpu(), value, rtol=NEAR, atol=NEAR)
