"""What the judge needs to know of Kimi Delta Attention: how inputs are drawn and bounded, what honest arithmetic is.

Nothing here needs torch until an emulator runs or a device draws.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gdnspec.family import Calls, Definition, DevicePainter, Emulated, Family, Scope, Suites, Workload

from . import bounds
from .draw import Painter
from .fresh import Lines

if TYPE_CHECKING:
    import torch


def emulators(call: Emulated) -> Iterator[tuple[str, Any]]:
    """Single tokens: the reference, which computes in float32 at least. Prefill: chunks with rounded operands.
    Its gradients, its stages and the layer: the second derivation, the operands of its products rounded."""
    if call.definition.stage in ("decode", "verify"):
        yield "float32_recurrence", call.oracle(**call.arguments)
    elif call.definition.stage in ("backward", "chunk_stage", "layer"):
        from gdnspec.family import rounded_products

        gradients = call.definition.stage == "backward"  # which may cancel, so that few errors say little
        lengths = [length for length in call.arguments["cu_seqlens"].diff().tolist() if length] if gradients else []
        yield from rounded_products(call.second, call.arguments, call.strict, min(lengths, default=None), call.more)
    else:
        from .emulators import emulate

        yield from emulate(call.definition, call.arguments, call.strict, call.more)


def calls() -> Calls:
    """How a call of somebody's Kimi Delta Attention becomes a workload."""
    from .calls import CALLS

    return CALLS


def device_painter(definition: Definition, workload: Workload, scope: Scope, device: str) -> DevicePainter:
    """Draws past 2^31 elements in a second."""
    from .device import Brush

    return Brush(definition, workload, scope, device)


def device_problems(definition: Definition, tensors: "dict[str, torch.Tensor]", workload: Workload) -> Iterator[str]:
    """What bounds drawn inputs, where they were drawn on a device."""
    from .device import problems

    return problems(definition, tensors, workload)


def suites() -> Suites:
    """The workloads that are shipped: a package that only the tool which writes them loads."""
    from .suites import shipped

    return shipped


def ops() -> Mapping[str, Callable[..., Any]]:
    """The operators as functions, which need torch."""
    from . import ops

    return {name: getattr(ops, name) for name in ops.__all__}


FAMILY = Family(
    Painter, bounds.problems, emulators, ("k", "beta", "b"), fresh=Lines,
    device_painter=device_painter, device_problems=device_problems, calls=calls, suites=suites, ops=ops,
)  # fmt: skip
