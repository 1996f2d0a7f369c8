"""Derivatives that no operator has: forward mode, torch.func, batches of gradients. Each says so, and none is zero."""

from collections.abc import Callable
from typing import Any

import helpers_kda_operators
import helpers_operators
import pytest
import torch
from helpers_operators import Call
from torch import Tensor
from torch.autograd import forward_ad

DTYPES = (torch.bfloat16, torch.float32)
CALLS: dict[str, dict[torch.dtype, Call]] = {
    f"{family}, {name}": {dtype: made(dtype)[name] for dtype in DTYPES}
    for family, made in (("gdn", helpers_operators.calls), ("kda", helpers_kda_operators.calls))
    for name in made()
}


def summed(call: Call, args: list[Any], x: Tensor) -> Tensor:
    """Of all outputs, of which the first argument is x."""
    return sum((y.double().sum() for y in call.outputs(x, *args[1:])), torch.zeros(()).double())


def dual(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


FORWARD: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "dual numbers": dual,
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (torch.ones_like(x),)),
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x),
}
REVERSE: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda function, x: torch.func.grad(function)(x),
    "vjp": lambda function, x: torch.func.vjp(function, x),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_they_are_refused(name: str, dtype: torch.dtype) -> None:
    call = CALLS[name][dtype]
    x, *_ = args = list(call.copy())
    for ask in FORWARD.values():
        with pytest.raises(RuntimeError, match=rf"^{call.name}: forward-mode derivatives .* torch\.autograd\.grad"):
            ask(lambda x: summed(call, args, x), x)
    for ask in REVERSE.values():
        with pytest.raises(RuntimeError, match=rf"^{call.name}: torch\.func has no gradients of it: .* backward"):
            ask(lambda x: summed(call, args, x), x)


BATCHED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "is_grads_batched": lambda y, x, given: torch.autograd.grad(y, x, given, is_grads_batched=True),
    "vmap": lambda y, x, given: torch.vmap(lambda one: torch.autograd.grad(y, x, one)[0])(given),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", BATCHED)
@pytest.mark.parametrize("name", CALLS)
def test_a_batch_of_gradients_is_refused(name: str, way: str, dtype: torch.dtype) -> None:
    """PyTorch's own words name an operator that the caller has never heard of."""
    call = CALLS[name][dtype]
    x, *_ = args = list(call.copy())
    y = call.outputs(x.requires_grad_(), *args[1:])[0]
    with pytest.raises(RuntimeError, match=rf"^{call.name}: a batch of gradients is given: .* is_grads_batched"):
        BATCHED[way](y, x, torch.ones(2, *y.shape, dtype=y.dtype))
    one = torch.autograd.grad(call.outputs(x, *list(call.copy())[1:])[0].double().sum(), x)[0]
    assert one.shape == x.shape


@pytest.mark.parametrize("name", ["gdn, ragged", "kda, ragged", "gdn, norm", "gdn, convolution"])
def test_a_level_without_tangents_changes_nothing(name: str) -> None:
    call = CALLS[name][torch.float32]
    x, *_ = args = list(call.copy())
    with forward_ad.dual_level():
        found = torch.autograd.grad(summed(call, args, x.requires_grad_()), x)[0]
    assert torch.equal(found, torch.autograd.grad(summed(call, args, x), x)[0])
