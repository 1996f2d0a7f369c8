"""Registers an operator with PyTorch: define and impl, for `custom_op` costs more host time per call.

An operator is a function in plain PyTorch, one for fake tensors that also checks the call, and one that says which
kernel it asks for on a GPU. Gradients are those of the plain function. A call that wants them runs the operator
`<name>_plain` and keeps its inputs alone. The operator `<name>_backward` computes the plain function again and
differentiates it. So a traced graph looks into neither.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .direct import direct
from .served import by_kernel

NAMESPACE = "gdnspec"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
BELOW_AUTOGRAD = torch._C._after_autograd_keyset
MUTATED = re.compile(r"Tensor\([a-z]!\)")

Function = Callable[..., Any]
KERNELS: dict[str, dict[str, Function]] = {}  # what each operator calls without gradients, by device


def register(name: str, arguments: str, returns: str, plain: Function, fake: Function, asked: Function) -> Function:
    """An operator without side effects. Returns it as a function of all arguments by position."""
    wanted = _differentiable(name, arguments, returns, plain, fake)
    kernels = {"CPU": _precise(plain), "CUDA": by_kernel(arguments, fake, asked)}
    return direct(operator(f"{name}({arguments}) -> {returns}", fake, kernels, wanted), kernels["CUDA"])


def register_pool(
    name: str, arguments: str, moved: Function, fake: Function, asked: Function, returns: str = "Tensor"
) -> Function:
    """An operator that updates its pools, the arguments `Tensor(a!)`, `Tensor(b!)`, in place. Returns it as a function.

    `moved` returns the outputs, then for each pool the slots that the call writes, and what goes there. With gradients,
    the pools afterwards are further outputs, which are copied.
    """
    pools = [i for i, text in enumerate(arguments.split(", ")) if MUTATED.match(text)]
    count = len(_returned(name, arguments, returns))

    def in_place(*args: Any) -> Any:
        found = moved(*args)
        for i, slots, states in zip(pools, found[count::2], found[count + 1 :: 2], strict=True):
            args[i].index_put_((slots,), states)
        return found[0] if count == 1 else found[:count]

    def functional(*args: Any) -> tuple[Tensor, ...]:
        found = moved(*args)
        pairs = zip(pools, found[count::2], found[count + 1 :: 2], strict=True)
        after = (args[i].index_put((slots,), states).contiguous() for i, slots, states in pairs)
        return (*found[:count], *after)

    def functional_fake(*args: Any) -> tuple[Tensor, ...]:
        outputs = fake(*args)
        after = (torch.empty_like(args[i], memory_format=torch.contiguous_format) for i in pools)
        return (*(outputs if count > 1 else (outputs,)), *after)

    all_returns = f"({', '.join(['Tensor'] * (count + len(pools)))})"
    both = _differentiable(name, MUTATED.sub("Tensor", arguments), all_returns, functional, functional_fake)

    def wanted(*args: Any) -> Any:
        given = list(args)
        for i in pools:
            given[i] = args[i].clone()  # kept for the backward, while the pool itself changes
        outputs = both(*given)
        for i, after in zip(pools, outputs[count:], strict=True):
            args[i].copy_(after)
        return outputs[0] if count == 1 else outputs[:count]

    kernels = {"CPU": _precise(in_place), "CUDA": by_kernel(arguments, fake, asked, pools)}
    return direct(operator(f"{name}({arguments}) -> {returns}", fake, kernels, wanted), kernels["CUDA"])


def _returned(name: str, arguments: str, returns: str) -> Any:
    return torch._C.parse_schema(f"{name}({arguments}) -> {returns}").returns


def operator(schema: str, fake: Function, kernels: dict[str, Function], wanted: Function) -> Any:
    """Defines an operator; `wanted` is called where gradients are.

    Without gradients, autograd calls the kernel that the dispatcher would call next. Only tensors that are more than
    plain ones, such as fake tensors, go through the dispatcher a second time, which costs as much as the first.
    """
    known: dict[int, Function | None] = {}
    KERNELS[_name(schema)] = kernels
    defined = _define(schema, kernels, fake)
    redispatch = defined.redispatch

    def autograd(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return wanted(*args)
        raw = keyset.raw_repr()
        if raw not in known:
            known[raw] = kernels.get((keyset & BELOW_AUTOGRAD).highestPriorityTypeId().name)
        kernel = known[raw]
        return redispatch(keyset & BELOW_AUTOGRAD, *args) if kernel is None else kernel(*args)

    LIBRARY.impl(_name(schema), autograd, "Autograd", with_keyset=True)
    return defined


def _differentiable(name: str, arguments: str, returns: str, plain: Function, fake: Function) -> Function:
    """The plain function as a function with gradients, of two operators without."""
    required = ", ".join(text.partition("=")[0] for text in arguments.split(", "))
    defaults = [x.default_value for x in torch._C.parse_schema(f"{name}({arguments}) -> {returns}").arguments]
    forward = _both_devices(f"{name}_plain({required}) -> {returns}", plain, fake)
    backward = _both_devices(
        f"{name}_backward(Tensor?[] grads, bool[] needs, {required}) -> Tensor[]", _backward(plain), _backward_fake
    )

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in args))
            ctx.rest = [None if isinstance(x, Tensor) else x for x in args]
            with torch._C._AutoDispatchBelowAutograd():
                return forward(*args)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            args = [x if saved is None else saved for x, saved in zip(ctx.rest, ctx.saved_tensors, strict=True)]
            found = iter(backward(list(grads), list(ctx.needs_input_grad), *args))
            return tuple(next(found) if need else None for need in ctx.needs_input_grad)

    Gradients.__name__ = name
    return lambda *args: Gradients.apply(*args, *defaults[len(args) :])


def _backward(plain: Function) -> Function:
    """The gradients of the inputs that need one, in their order."""

    def backward(grads: list[Tensor | None], needs: list[bool], *args: Any) -> list[Tensor]:
        leaves = [x.detach() if isinstance(x, Tensor) else x for x in args]
        inputs = [x.requires_grad_() for x, need in zip(leaves, needs, strict=True) if need]
        with torch.enable_grad():
            outputs = plain(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(x, g) for x, g in zip(outputs, grads, strict=True) if g is not None and x.requires_grad]
        if not pairs:
            return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs]
        reached, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(reached, inputs, given, allow_unused=True, materialize_grads=True)
        # What an operator returns may share no memory with what it was given.
        return [gradient.clone(memory_format=torch.contiguous_format) for gradient in found]

    return backward


def _backward_fake(grads: list[Tensor | None], needs: list[bool], *args: Any) -> list[Tensor]:
    inputs = (x for x, need in zip(args, needs, strict=True) if need)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]


def _both_devices(schema: str, function: Function, fake: Function) -> Any:
    """An operator in plain PyTorch everywhere, which autograd passes over instead of being off inside it."""
    defined = _define(schema, dict.fromkeys(("CPU", "CUDA"), _precise(function)), fake)
    LIBRARY.impl(_name(schema), torch.library.fallthrough_kernel, "Autograd")
    return defined


def _define(schema: str, kernels: dict[str, Function], fake: Function) -> Any:
    name = _name(schema)
    LIBRARY.define(schema)
    for device, kernel in kernels.items():
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _name(schema: str) -> str:
    return schema.partition("(")[0]


def _precise(plain: Function) -> Function:
    """The function with matrix products of float32 in float32: a process may have allowed shorter ones, or autocast."""

    def precise(*args: Any) -> Any:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with torch._C._DisableAutocast():
                return plain(*args)
        finally:
            torch.set_float32_matmul_precision(before)

    return precise
