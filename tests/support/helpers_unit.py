"""What several unit tests need: the reference's modules, and drawn inputs as its arguments."""

from types import ModuleType
from typing import Any

import torch
from gdnspec.build import reference as code
from gdnspec.catalog.definitions import Found, presets
from gdnspec.catalog.families import family
from gdnspec.inputs.materialise import Inputs, materialise
from gdnspec.inputs.random import Stream
from gdnspec.inputs.slots import slots
from gdnspec.model import roles
from gdnspec.model.workload import Workload
from gdnspec.numerics.torch_arrays import to_torch
from torch import Tensor

# Of quantised states alone: no other definition has codes.
OF_CODES = {"zero_states", "vanishing_states", "codes_at_ends", "rounding_ties"}
# Regimes of cotangents, which only the definitions of gradients have.
OF_GRADIENTS = {name for name in family("gdn").about.regimes if name.endswith(("cotangent", "cotangents"))}
# Of rows by hand: gradients, and operators that normalise.
OF_ROWS_BY_HAND = {"large_activations", "overflowing_rates", "steep_at_first"}
# Of prefill from a state alone: one token does not replace it.
OF_SEQUENCES = {"replaced_large_state"}

INTERVAL = "checkpoint_interval"

# A preset of a released model, for what is asked of every definition.
OF_A_MODEL = {"gdn": "qwen3-next-80b-a3b-tp1", "kda": "kimi-linear-48b-a3b-tp1"}
GVA, GQA = "synthetic-gva-2x4-d64", "synthetic-gqa-4x2-d64"


def reference(module: str) -> ModuleType:
    """A module of reference/gdn/."""
    return code.module(family("gdn"), module)


def line(found: Found, preset: str = GVA, regime: str = "typical", seed: int = 1, **more: Any) -> Workload:
    """A workload of the definition: `lengths` of sequences, or `batch` size; with checkpoints, every 64 tokens."""
    if found.definition.conventions.packing == "ragged":
        keeps = any(tensor.name == INTERVAL for tensor in found.definition.inputs)
        lengths = list(more.pop("lengths", (66, 0, 130) if keeps else (5, 0, 3)))
        size: dict[str, Any] = {"sequence_lengths": lengths}
        if keeps:
            size["scalars"] = {INTERVAL: 64, **more.pop("scalars", {})}
        size["axes"] = roles.sizes(found.definition, lengths, size.get("scalars", {}))
        axes, integers = slots(found.definition, len(lengths), 1, Stream(8, "slots"))
        size["axes"] |= axes
        size["integers"] = integers
    else:
        several = roles.axis(found.definition, "drafts")
        # Of two counts each must matter in some row.
        two = sum(tensor.counts is not None for tensor in found.definition.inputs) > 1
        batch, tokens = more.pop("batch", 6 if two else 3), (4 if two else 2) if several else 1
        axes, integers = slots(found.definition, batch, tokens, Stream(8, "slots"))
        drafts = {several: tokens} if several else {}
        size = {"axes": {"batch_size": batch, **drafts, **axes}, "integers": integers}
    row = {"name": "test", "suite": "smoke", "preset": preset, "regime": regime, "seed": seed, **size, **more}
    workload = Workload.model_validate(row)
    workload.check(found.definition, presets()[preset])
    return workload


def drawn(found: Found, preset: str = GVA, regime: str = "typical", seed: int = 1, **more: Any) -> Inputs:
    return materialise(found, line(found, preset, regime, seed, **more))


def arguments(found: Found, inputs: Inputs, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The reference's keyword arguments; floating tensors in `dtype` where it is given."""
    result: dict[str, Any] = {}
    for tensor in found.definition.inputs:
        if tensor.is_scalar:
            result[tensor.name] = inputs.scalars[tensor.name]
        elif tensor.name in inputs.tensors:
            value = to_torch(inputs.tensors[tensor.name])
            result[tensor.name] = value.to(dtype) if dtype and value.is_floating_point() else value
        else:
            result[tensor.name] = None
    return result


def run_reference(found: Found, keywords: dict[str, Any]) -> dict[str, Tensor]:
    """What the definition's reference leaves, by name: its outputs, and pools as they are afterwards."""
    file, function = found.definition.reference.split("::")
    values = getattr(code.module(found.family, file.removesuffix(".py")), function)(**keywords)
    values = (values,) if isinstance(values, Tensor) else values
    return dict(zip([tensor.name for tensor in found.definition.judged], values, strict=True))
