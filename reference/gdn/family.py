"""What the judge needs to know of gated delta net: how inputs are drawn and bounded, what honest arithmetic is.

Nothing here needs torch until an emulator runs or a device draws.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gdnspec.family import (
    Calls,
    Definition,
    DevicePainter,
    Emulated,
    Family,
    Foreign,
    Onnx,
    Scope,
    SessionWords,
    Suites,
    Workload,
)

from . import bounds
from .draw import Painter
from .fresh import Lines

if TYPE_CHECKING:
    import torch

# Stages whose arithmetic no tensor core takes part in: float32 is what is honest there.
WITHOUT_PRODUCTS = {
    "decode": "float32_recurrence", "verify": "float32_recurrence", "convolution": "float32", "norm": "float32",
}  # fmt: skip


def emulators(call: Emulated) -> Iterator[tuple[str, Any]]:
    """The reference in float32; its matrix products rounded; or for prefill from q, k and v a family of its own."""
    alone = without_products(call.definition)
    if alone is not None:
        # The reference computes in the widest type of its inputs, float32 at least.
        yield alone, call.oracle(**call.arguments)
        if call.definition.conventions.state_scale != "none":
            from .emulators import on_codes

            yield from on_codes(call)
    elif by_products(call.definition):
        from gdnspec.family import rounded_products

        yield from rounded_products(call.second, call.arguments, call.strict, shortest_piece(call), call.more)
    else:
        from .emulators import emulate, emulate_padded, emulate_pool, family

        run = emulate_pool if "pool" in call.arguments else emulate
        run = emulate_padded if "attention_mask" in call.arguments else run
        yield from run(call.definition, call.arguments, family(call.strict, call.more))


def shortest_piece(call: Emulated) -> int | None:
    """The fewest tokens that are cut into chunks by themselves, of a sequence or behind the last state given, where
    this decides which emulators there are: for gradients, which may cancel."""
    if call.definition.stage != "backward":
        return None
    lengths = [length for length in call.arguments["cu_seqlens"].diff().tolist() if length]
    interval = call.arguments.get("checkpoint_interval", max(lengths, default=0))
    return min((length % interval or interval for length in lengths), default=None)


def without_products(definition: Definition) -> str | None:
    """The one emulator of a definition that no tensor core takes part in; None for others."""
    around = definition.stage == "backward" and definition.conventions.state_layout == "none"  # not of the rule
    return "float32" if around else WITHOUT_PRODUCTS.get(definition.stage)


def by_products(definition: Definition) -> bool:
    """Whether its emulators are its reference with rounded products, and no family of its own."""
    own = definition.stage == "prefill" and {"q", "k", "v"} <= {tensor.name for tensor in definition.inputs}
    return without_products(definition) is None and not own


def device_painter(definition: Definition, workload: Workload, scope: Scope, device: str) -> DevicePainter:
    """Draws past 2^31 elements in a second."""
    from .device import Brush

    return Brush(definition, workload, scope, device)


def device_problems(definition: Definition, tensors: "dict[str, torch.Tensor]", workload: Workload) -> Iterator[str]:
    """What bounds drawn inputs, where they were drawn on a device."""
    from .device import problems

    return problems(definition, tensors, workload)


def calls() -> Calls:
    """How a call of somebody's gated delta rule becomes a workload."""
    from .calls import CALLS

    return CALLS


def foreign() -> Foreign:
    """How FlashInfer-Bench has these definitions."""
    from .foreign import GatedDeltaNet

    return GatedDeltaNet()


def onnx() -> Onnx:
    """How ONNX has these definitions."""
    from .onnx_nodes import nodes, words

    return Onnx(27, words, nodes)


def sessions() -> SessionWords:
    """How these definitions serve the calls of a session."""
    from .sessions import WORDS

    return WORDS


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
    device_painter=device_painter, device_problems=device_problems, calls=calls, foreign=foreign, onnx=onnx,
    sessions=sessions, suites=suites, ops=ops,
)  # fmt: skip
