"""A way past PyTorch's dispatcher, for a call that looks like the one before it.

The dispatcher, and finding the kernel of a call in Python, take the host longer than all the rest. `torch.compile` has
the same need: its code serves calls of one form only. The guards that tell it whether a call has that form serve here.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad

from gdnspec.registration.checks import constants, unlike

Function = Callable[..., Any]

PLAIN = (Tensor, nn.Parameter)


class Form(NamedTuple):
    """Calls of one form, and their kernel.

    Guards hold for tensors of the same types, sizes, strides and devices, and for a thread in the same state, because
    gradients, modes, transforms and autocast are keys of the dispatcher. They see no default device and no tangents.
    """

    arity: int
    tensors: Function
    guards: Any
    others: Function
    values: tuple[Any, ...]
    kernel: Function

    def has(self, args: tuple[Any, ...]) -> bool:
        return (
            len(args) == self.arity
            and self.guards.check(*self.tensors(args))
            and self.others(args) == self.values
            and not torch._C._len_torch_function_stack()
            and forward_ad._current_level < 0
        )


def direct(operator: Any, served: Any, device: str = "CUDA", numbers: Sequence[int] = ()) -> Function:
    """The operator. From the third call of one form in a row, its kernel is called without the dispatcher.

    `served` is what the dispatcher would call on this device. It has the kernel of its last call as `latest`, and its
    `find` returns the kernel of a call. `numbers`: the places of arguments that are no tensors.
    """
    before: Function | None = None
    form: Form | None = None

    def call(*args: Any) -> Any:
        nonlocal before, form
        if torch.compiler.is_compiling():
            return operator(*args)
        known = form  # other threads may call
        if known is not None and known.has(args):
            return known.kernel(*args)
        constants(operator, numbers, args)
        served.latest = None  # and stays so where the call goes elsewhere
        try:
            outputs = operator(*args)
        except Exception as error:  # the dispatcher's own words run over many lines, and it lets None pass for a tensor
            said = unlike(operator, args)
            if said is None:
                raise
            raise TypeError(said) from error
        latest = served.latest
        if latest is not None and latest is before:
            form = form_of(args, served.find, device) or form
        before = latest
        return outputs

    return call


def form_of(args: tuple[Any, ...], find: Function, device: str) -> Form | None:
    """The form of a call which the dispatcher hands to the kernel of this device as it is, else None."""
    given = [isinstance(x, Tensor) for x in args]
    tensors = [x for x in args if isinstance(x, Tensor)]
    if _has_modes() or not all(_goes_to(device, x) for x in tensors):
        return None
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        return None
    sizes: list[Any] = [[*x.shape] for x in tensors]
    strides: list[Any] = [[*x.stride()] for x in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    others = _places(i for i, is_tensor in enumerate(given) if not is_tensor)
    return Form(
        len(args),
        _places(i for i, is_tensor in enumerate(given) if is_tensor),
        guards,
        others,
        others(args),
        find(*args),
    )


def _places(which: Any) -> Function:
    """The arguments at these places, as a tuple."""
    places = (*which,)
    if len(places) > 1:
        return itemgetter(*places)
    return lambda args: tuple([args[i] for i in places])


def _has_modes() -> bool:
    transforms = torch._C._functorch.peek_interpreter_stack() is not None
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return transforms or modes > 0 or torch._C._get_tracing_state() is not None


def _goes_to(device: str, x: Tensor) -> bool:
    """Of other tensors something is asked first, such as the negation of one that is a negative view."""
    keys = torch._C._dispatch_keys(x) & torch._C._after_ADInplaceOrView_keyset
    return type(x) in PLAIN and keys.highestPriorityTypeId().name == device
