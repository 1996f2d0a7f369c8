"""The gradients of an operator: those of its definition's backward where there is one, else PyTorch's.

A call that wants gradients runs the operator `<name>_forward` and keeps its inputs alone. The operator
`<name>_backward` asks the kernel that gdnspec chooses for the definition of the gradients. A call whose types no
definition has is computed in plain PyTorch; the backward pass computes it again and differentiates it. A traced graph
looks into neither operator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from gdnspec.registration.by_kernel import Asked, chosen

Function = Callable[..., Any]
Grads = list[Tensor | None]

# Who runs a compiled backward pass has excluded autograd, without which every gradient would be zero.
AUTOGRAD, VIEWS = torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView
_recorded = torch._C._SetExcludeDispatchKeyGuard


class Backward(NamedTuple):
    """Which definition says what the gradients of an operator are.

    `serves` says whether it has the types and sizes of these arguments. `asked` takes the gradients of the outputs and
    the arguments. It returns the definition, its inputs in order, and what makes of its outputs the gradient of each
    argument, up to shape and type.
    """

    serves: Callable[..., bool]
    asked: Callable[[Grads, tuple[Any, ...]], Asked]


def with_gradients(name: str, forward: Any, backward: Any, defaults: list[Any]) -> Function:
    """A function with gradients, of two operators without."""

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
            if not torch.compiler.is_compiling() and any(_batched(x) for x in grads):
                served = "one gradient of the outputs is served: leave is_grads_batched, vectorize or vmap out"
                raise RuntimeError(f"{name}: a batch of gradients is given: {served}")
            found = backward(list(grads), list(ctx.needs_input_grad), *args)
            reached = [x for x in [*args, *grads] if isinstance(x, Tensor) and x.requires_grad]
            each = iter(OnlyOnce.apply(name, len(found), *found, *reached) if torch.is_grad_enabled() else found)
            return tuple(next(each) if need else None for need in ctx.needs_input_grad)

    Gradients.__name__ = name
    Gradients._backward_cls.__name__ = f"{name}Backward"  # what errors and profiles say
    return lambda *args: Gradients.apply(*args, *defaults[len(args) :])


class OnlyOnce(torch.autograd.Function):
    """Gradients that say, where autograd would go through them, that it cannot: create_graph asks for that. They depend
    on `reached`, so that whoever asks for the gradient of one of these is told, too."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        said = "second derivatives are not served: leave create_graph out, or detach what depends on its gradients"
        raise RuntimeError(f"{ctx.name}: {said}")


def _batched(x: Tensor | None) -> bool:
    """Whether it stands for many: `torch.vmap` has one form of these, and `torch.autograd.grad` an older one."""
    return x is not None and (is_batchedtensor(x) or is_legacy_batchedtensor(x))


def forwards(plain: Function, kernel: Function, served: Backward | None) -> dict[str, Function]:
    """What a call that wants gradients runs, by device."""
    if served is None:
        return dict.fromkeys(("CPU", "CUDA"), plain)

    def on_a_gpu(*args: Any) -> Any:
        try:
            known = served.serves(*args)
        except (AttributeError, IndexError, TypeError):
            plain(*args)  # the call has not been checked yet: this says what is wrong with it
            raise
        return kernel(*args) if known else plain(*args)

    return {"CPU": plain, "CUDA": on_a_gpu}


def backward_of(plain: Function, served: Backward | None) -> Function:
    """The gradients of the inputs that need one, in their order."""

    def backward(grads: Grads, needs: list[bool], *args: Any) -> list[Tensor]:
        if served is None or not served.serves(*args) or all(x is None for x in grads):
            return _by_autograd(plain, grads, needs, args)
        with torch.no_grad():
            definition, inputs, finish = served.asked(_dense(grads), args)
            # The forward pass took them as they lie: no reason to refuse here, nor to leave out a kernel. Copies are
            # cheap beside it.
            inputs = tuple(_dense(list(inputs)))
            found = chosen(definition, inputs)(*inputs)
            found = found if finish is None else finish(found)
            wanted = ((x, like) for x, like, need in zip(found, args, needs, strict=False) if need)
            return [x.to(like.dtype).reshape(like.shape).contiguous() for x, like in wanted]

    return backward


def _dense(values: list[Any]) -> list[Any]:
    return [x.contiguous() if isinstance(x, Tensor) else x for x in values]


def _by_autograd(plain: Function, grads: Grads, needs: list[bool], args: tuple[Any, ...]) -> list[Tensor]:
    leaves = [x.detach() if isinstance(x, Tensor) else x for x in args]
    inputs = [x.requires_grad_() for x, need in zip(leaves, needs, strict=True) if need]
    with torch.enable_grad(), _recorded(AUTOGRAD, False), _recorded(VIEWS, False):
        outputs = plain(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(x, g) for x, g in zip(outputs, grads, strict=True) if g is not None and x.requires_grad]
    if not pairs:
        return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs]
    reached, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(reached, inputs, given, allow_unused=True, materialize_grads=True)
    # What an operator returns may share no memory with what it was given.
    return [gradient.clone(memory_format=torch.contiguous_format) for gradient in found]


def backward_fake(grads: Grads, needs: list[bool], *args: Any) -> list[Tensor]:
    """The same without values."""
    inputs = (x for x, need in zip(args, needs, strict=True) if need)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
