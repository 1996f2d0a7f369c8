"""Calls the CUDA kernel that gdnspec chooses for a definition, shapes and types."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from gdnspec.api.kernel import kernel
from gdnspec.registration.no_views import whole

MOST = 4096  # lengths differ from call to call: so many forms of calls are known

CHOSEN: dict[Any, Callable[..., Any]] = {}  # of `chosen`

Asked = tuple[str, tuple[Any, ...], Callable[..., Any] | None]


class Served:
    """An operator's function for CUDA tensors.

    `latest` is the call of the kernel that it made last.
    """

    def __init__(self, find: Callable[..., Any]) -> None:
        self.find = find
        self.latest: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        self.latest = call = self.find(*args)
        return call(*args)


def by_kernel(
    arguments: str, check: Callable[..., Any], asked: Callable[..., Asked], pools: Sequence[int] = (),
    axes: Callable[..., Mapping[str, int]] | None = None,
) -> Served:  # fmt: skip
    """An operator's function for CUDA tensors. `arguments`: those of its schema. `pools`: which of them it updates.
    `axes` returns sizes of outputs that an argument says, and otherwise only the values of a tensor.

    `asked` returns the definition that says what a call means, its inputs in order, and what becomes of the outputs, or
    None. `check` raises an error for a call that is not served. Calls of one form are checked once, and their kernel is
    chosen once. Nothing here reads a value, so that a CUDA graph may record the call.
    """
    known: dict[Any, Callable[..., Any]] = {}
    form = _form(arguments)

    def find(*args: Any) -> Callable[..., Any]:
        key = form(*args)
        call = known.get(key)
        if call is None:
            check(*args)
            if len(known) >= MOST:
                known.clear()
            call = known[key] = _told(_planned(asked, args, axes), pools)
        return call

    return Served(find)


def _told(call: Callable[..., Any], pools: Sequence[int]) -> Callable[..., Any]:
    """The same call, after which autograd knows that the pools have changed."""
    if not pools:
        return call

    def told(*args: Any) -> Any:
        outputs = call(*args)
        torch.autograd.graph.increment_version([args[i] for i in pools if not args[i].is_inference()])
        return outputs

    return told


def chosen(definition: str, inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """The kernel of a definition for calls of this form, chosen once."""
    form = (definition, *((x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x for x in inputs))
    call = CHOSEN.get(form)
    if call is None:
        if len(CHOSEN) >= MOST:
            CHOSEN.clear()
        call = CHOSEN[form] = kernel(definition, inputs).bind(*inputs)
    return call


def _planned(
    asked: Callable[..., Asked], args: tuple[Any, ...], axes: Callable[..., Mapping[str, int]] | None
) -> Callable[..., Any]:
    """A call of the kernel for arguments of this form."""
    definition, inputs, finish = asked(*args)
    found = kernel(definition, inputs)
    call = found.bind(*inputs) if axes is None else found.bind(*inputs, axes=axes(*args))

    def converted(*args: Any) -> Any:
        _, inputs, finish = asked(*args)
        outputs = call(*inputs)
        return outputs if finish is None else whole(finish)(outputs)

    # Arguments that go to the kernel as they are need no conversion, only their order. Views tell apart what is one
    # tensor twice. Whatever is no tensor is the same in each call of this form.
    apart = [x.view_as(x) if isinstance(x, Tensor) else x for x in args]
    inputs = asked(*apart)[1]
    places = {id(x): i for i, x in enumerate(apart) if isinstance(x, Tensor)}
    constants = tuple(x for x in inputs if not isinstance(x, Tensor))
    if finish is not None or any(isinstance(x, Tensor) and id(x) not in places for x in inputs):
        return converted
    # Constants come first: a call may leave out arguments at the end.
    first = iter(range(len(constants)))
    order = itemgetter(*[len(constants) + places[id(x)] if isinstance(x, Tensor) else next(first) for x in inputs])
    return lambda *args: call(*order(constants + args))


def _form(arguments: str) -> Callable[..., Any]:
    """A function that tells calls apart by devices, shapes, strides, types, and values that are no tensors.

    The device of each tensor is part of it: a kernel must not get the address of a tensor on the CPU because the call
    before had it on the GPU. It is written out, because a loop over the arguments takes 1 us longer."""
    parsed = torch._C.parse_schema(f"form({arguments}) -> ()").arguments
    parameters = [f"{x.name}={x.default_value!r}" if x.has_default_value() else x.name for x in parsed]
    parts = []
    for x in parsed:
        told = f"{x.name}.get_device(), {x.name}.shape, {x.name}.stride(), {x.name}.dtype"
        optional = f"None if {x.name} is None else ({told})"
        parts.append({"Tensor": told, "Optional[Tensor]": optional}.get(str(x.type), x.name))
    return eval(f"lambda {', '.join(parameters)}: ({', '.join(parts)})")
