"""Registers an operator with PyTorch: define and impl, for `custom_op` costs more host time per call.

An operator is a function in plain PyTorch, one for fake tensors that also checks the call, and one that says which
kernel it asks for on a GPU. gradients.py has what a call that wants gradients runs.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gdnspec.api.precise import precise
from gdnspec.registration import checks
from gdnspec.registration.by_kernel import by_kernel
from gdnspec.registration.direct import direct
from gdnspec.registration.gradients import Backward, backward_fake, backward_of, forwards, with_gradients
from gdnspec.registration.no_views import whole

NAMESPACE = "gdnspec"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
BELOW_AUTOGRAD = torch._C._after_autograd_keyset
INSTEAD = "take gradients by torch.autograd.grad or backward()"
MUTATED = re.compile(r"Tensor\([a-z]!\)")

Function = Callable[..., Any]
KERNELS: dict[str, dict[str, Function]] = {}  # what each operator calls below autograd, by device


def register(
    name: str, arguments: str, returns: str, plain: Function, fake: Function, asked: Function,
    backward: Backward | None = None, axes: Callable[..., Mapping[str, int]] | None = None,
) -> Function:  # fmt: skip
    """An operator without side effects. Returns it as a function of all arguments by position. `backward`: which
    definition has its gradients. `axes`: sizes of outputs that an argument says, and no shape."""
    kernel = by_kernel(arguments, fake, asked, axes=axes)
    wanted = _differentiable(name, arguments, returns, plain, fake, lambda *args: kernel.find(*args)(*args), backward)
    kernels: dict[str, Function] = {"CPU": precise(whole(plain)), "CUDA": kernel}
    return _function(operator(f"{name}({arguments}) -> {returns}", fake, kernels, wanted), kernel)


def register_pool(
    name: str, arguments: str, moved: Function, fake: Function, asked: Function, returns: str = "Tensor",
    backward: Backward | None = None,
) -> Function:  # fmt: skip
    """An operator that updates its pools, the arguments `Tensor(a!)`, `Tensor(b!)`, in place. Returns it as a function.

    `moved` returns the outputs, then for each pool the slots that the call writes, and what goes there. With gradients,
    the pools afterwards are further outputs, which are copied; `backward` gets their gradients behind the others.
    """
    pools = [i for i, text in enumerate(arguments.split(", ")) if MUTATED.match(text)]
    words = [text.partition("=")[0].split()[-1] for text in arguments.split(", ")]
    count, apart = len(_returned(name, arguments, returns)), whole(moved)
    kernel = by_kernel(arguments, fake, asked, pools)

    def writable(args: tuple[Any, ...], grad: bool = False) -> None:
        for i in pools:
            checks.written(name, words[i], args[i], grad)

    def in_place(*args: Any) -> Any:
        writable(args)
        found = apart(*args)
        for i, slots, states in zip(pools, found[count::2], found[count + 1 :: 2], strict=True):
            args[i].index_put_((slots,), states)
        return found[0] if count == 1 else found[:count]

    def functional(*args: Any) -> tuple[Tensor, ...]:
        found = moved(*args)
        pairs = zip(pools, found[count::2], found[count + 1 :: 2], strict=True)
        after = (args[i].index_put((slots,), states).contiguous() for i, slots, states in pairs)
        return (*found[:count], *after)

    def functional_kernel(*args: Any) -> tuple[Tensor, ...]:
        given = list(args)
        for i in pools:
            given[i] = args[i].clone(memory_format=torch.contiguous_format)
        outputs = kernel.find(*given)(*given)
        return (*(outputs if count > 1 else (outputs,)), *(given[i] for i in pools))

    def functional_fake(*args: Any) -> tuple[Tensor, ...]:
        outputs = fake(*args)
        after = (torch.empty_like(args[i], memory_format=torch.contiguous_format) for i in pools)
        return (*(outputs if count > 1 else (outputs,)), *after)

    all_returns = f"({', '.join(['Tensor'] * (count + len(pools)))})"
    both = _differentiable(
        name, MUTATED.sub("Tensor", arguments), all_returns, functional, functional_fake, functional_kernel, backward
    )  # fmt: skip

    def wanted(*args: Any) -> Any:
        writable(args, grad=True)
        given = list(args)
        for i in pools:
            given[i] = Kept.apply(args[i])  # for the backward pass, while the pool itself changes
        outputs = both(*given)
        for i, after in zip(pools, outputs[count:], strict=True):
            args[i].copy_(after)
        return outputs[0] if count == 1 else outputs[:count]

    def batched(*args: Any) -> Any:
        raise RuntimeError(f"{name}: vmap is not served, because pools change in place: pass all rows in one call")

    kernels: dict[str, Function] = {"CPU": precise(in_place), "CUDA": kernel}
    defined = operator(f"{name}({arguments}) -> {returns}", fake, kernels, wanted)
    LIBRARY.impl(name, batched, "FuncTorchBatched")
    return _function(defined, kernel)


def _function(defined: Any, kernel: Any) -> Function:
    numbers = [i for i, x in enumerate(defined._schema.arguments) if "Tensor" not in str(x.type)]
    return direct(defined, kernel, numbers=numbers)


def _returned(name: str, arguments: str, returns: str) -> Any:
    return torch._C.parse_schema(f"{name}({arguments}) -> {returns}").returns


def operator(schema: str, fake: Function, kernels: dict[str, Function], wanted: Function) -> Any:
    """Defines an operator; `wanted` is called where gradients are.

    Without gradients, autograd calls the kernel that the dispatcher would call next. Only tensors that are more than
    plain ones, such as fake tensors, go through the dispatcher a second time, which costs as much as the first.
    """
    known: dict[int, Function | None] = {}
    defined = _define(schema, kernels, fake)
    redispatch = defined.redispatch

    def autograd(keyset: Any, *args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(_name(schema), args)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            if torch._C._are_functorch_transforms_active():
                raise RuntimeError(f"{_name(schema)}: torch.func has no gradients of it: {INSTEAD}")
            return wanted(*args)
        raw = keyset.raw_repr()
        if raw not in known:
            known[raw] = kernels.get((keyset & BELOW_AUTOGRAD).highestPriorityTypeId().name)
        kernel = known[raw]
        return redispatch(keyset & BELOW_AUTOGRAD, *args) if kernel is None else kernel(*args)

    LIBRARY.impl(_name(schema), autograd, "Autograd", with_keyset=True)
    return defined


def _refuse_tangents(name: str, args: tuple[Any, ...]) -> None:
    """No operator carries tangents on: what lies below autograd would drop them, and the answer would be zero."""
    if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args):
        raise RuntimeError(f"{name}: forward-mode derivatives (jvp, jacfwd) are not served: {INSTEAD}")


def _differentiable(
    name: str, arguments: str, returns: str, plain: Function, fake: Function, kernel: Function, served: Backward | None
) -> Function:  # fmt: skip
    """The plain function as a function with gradients; `kernel` computes the same on a GPU."""
    required = ", ".join(text.partition("=")[0] for text in arguments.split(", "))
    defaults = [x.default_value for x in torch._C.parse_schema(f"{name}({arguments}) -> {returns}").arguments]
    runs = {device: whole(run) for device, run in forwards(plain, kernel, served).items()}
    forward = _passed_over(f"{name}_forward({required}) -> {returns}", runs, fake)
    schema = f"{name}_backward(Tensor?[] grads, bool[] needs, {required}) -> Tensor[]"
    backward = _passed_over(schema, dict.fromkeys(("CPU", "CUDA"), backward_of(plain, served)), backward_fake)
    return with_gradients(name, forward, backward, defaults)


def _passed_over(schema: str, kernels: dict[str, Function], fake: Function) -> Any:
    """An operator that autograd passes over, instead of being off inside it."""
    defined = _define(schema, {device: precise(kernel) for device, kernel in kernels.items()}, fake)
    LIBRARY.impl(_name(schema), torch.library.fallthrough_kernel, "Autograd")
    return defined


class Kept(torch.autograd.Function):
    """A copy as an operator. PyTorch's compiler leaves out a `clone` that the backward pass can make again, although
    the tensor has changed by then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return COPY(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _define(schema: str, kernels: dict[str, Function], fake: Function) -> Any:
    name = _name(schema)
    LIBRARY.define(schema)
    KERNELS[name] = kernels
    for device, kernel in kernels.items():
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _name(schema: str) -> str:
    return schema.partition("(")[0]


COPY = _passed_over("kept(Tensor x) -> Tensor", dict.fromkeys(("CPU", "CUDA"), torch.clone), torch.clone)
