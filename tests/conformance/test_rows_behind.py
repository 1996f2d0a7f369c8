"""Operators over ragged sequences where rows stand behind the last one: these belong to none, whatever they hold."""

import math
from dataclasses import replace

import helpers_kda_operators
import helpers_operators
import pytest
import torch
from helpers_operators import Call
from torch import Tensor

BEHIND = 5
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
GDN, KDA = helpers_operators.calls(torch.float64), helpers_kda_operators.calls(torch.float64)
BFLOAT = helpers_operators.calls(BFLOAT16)


def without_slots(call: Call) -> Call:
    return replace(call, args=(*call.args[:9], None, *call.args[10:]))


CALLS: dict[str, tuple[int, Call]] = {
    **{f"gdn, {name}": (7, GDN[name]) for name in ("ragged", "convolution", "convolution and gates")},
    **{f"kda, {name}": (20, KDA[name]) for name in ("ragged", "raw gates")},
    "kda, checkpoints": (67, KDA["checkpoints"]),
    # Their gradients are those of a definition.
    "gdn, bfloat16": (7, helpers_operators.calls(BFLOAT16, FLOAT32, FLOAT32, 64, 64)["ragged"]),
    "gdn, convolution in bfloat16": (7, BFLOAT["convolution"]),
    "gdn, convolution without slots in bfloat16": (7, BFLOAT["convolution without slots"]),
    "gdn, gates in bfloat16": (7, BFLOAT["convolution and gates"]),
    "gdn, gates without slots in bfloat16": (7, without_slots(BFLOAT["convolution and gates"])),
    "kda, bfloat16": (20, helpers_kda_operators.calls(BFLOAT16, FLOAT32, 64)["ragged"]),
}


def longer(x: Tensor, tokens: int) -> Tensor:
    """With rows of NaN behind it, if it has a row for each token."""
    if not x.is_floating_point() or x.shape[0] != tokens:
        return x
    return torch.cat([x, x.new_full((BEHIND, *x.shape[1:]), math.nan)])


def differentiated(call: Call, args: list[object]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and the gradients of a sum over all of them, in which each element has a weight of its own."""
    floats = [x.requires_grad_() for x in args if isinstance(x, Tensor) and x.is_floating_point()]
    outputs = list(call.outputs(*args))
    weights = [torch.arange(x.numel(), dtype=torch.float64, device=x.device).sin().view_as(x) for x in outputs]
    total = sum((weight * x).sum() for weight, x in zip(weights, outputs, strict=True))
    return [x.detach() for x in outputs], list(torch.autograd.grad(total, floats))


@pytest.mark.parametrize("name", CALLS)
def test_they_change_nothing_and_have_gradients_of_zero(name: str) -> None:
    tokens, call = CALLS[name]
    outputs, gradients = differentiated(call, list(call.copy()))
    given = [longer(x, tokens) if isinstance(x, Tensor) else x for x in call.copy()]
    more_outputs, more_gradients = differentiated(call, given)
    for i, (found, expected) in enumerate(zip(more_outputs, outputs, strict=True)):
        torch.testing.assert_close(found[: len(expected)], expected, rtol=0, atol=0)
        gate = call.name == "causal_conv1d_gates" and i == 3
        assert torch.all(found[len(expected) :] == (1 if gate else 0))
    for found, expected in zip(more_gradients, gradients, strict=True):
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        assert torch.all(found[len(expected) :] == 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_a_gpu_leave_them_out(name: str) -> None:
    """A kernel may leave their outputs as they were. Their gradients are zero all the same, and no other is off."""
    tokens, call = CALLS[name]
    args = [x.cuda() if isinstance(x, Tensor) else x for x in call.copy()]
    outputs, gradients = differentiated(call, [x.clone() if isinstance(x, Tensor) else x for x in args])
    more_outputs, more_gradients = differentiated(
        call, [longer(x, tokens) if isinstance(x, Tensor) else x for x in args]
    )
    for found, expected in zip((*more_outputs, *more_gradients), (*outputs, *gradients), strict=True):
        torch.testing.assert_close(found[: len(expected)], expected, rtol=2e-2, atol=1e-4)
    for found, expected in zip(more_gradients, gradients, strict=True):
        assert torch.all(found[len(expected) :] == 0)
