"""Honest kernels of the judge: its reference, for steps that a solution does not serve, and the emulators that budgets
follow from."""

from typing import Any

import torch
from torch import Tensor

from gdnspec.build.reference import function, running
from gdnspec.catalog.definitions import Found
from gdnspec.check.content import Content
from gdnspec.inputs.contract import Emulated
from gdnspec.inputs.session_contract import SessionWords
from gdnspec.model.workload import Workload
from gdnspec.numerics.expected import in_chunks
from gdnspec.numerics.pools import integers, left
from gdnspec.sessions.kernels import Run


def arguments(found: Found, content: Content) -> dict[str, Any]:
    """The inputs by name, in the definition's order; None for omitted ones."""
    given: dict[str, Any] = {**content.tensors, **content.scalars}
    return {tensor.name: given.get(tensor.name) for tensor in found.definition.inputs}


def outputs(found: Found, content: Content, values: Any) -> dict[str, Tensor]:
    """What a reference returned, by name; of a pool the written slots."""
    given = values if isinstance(values, tuple | list) else (values,)
    judged = found.definition.judged
    whole = {tensor.name: value for tensor, value in zip(judged, given, strict=True)}
    return whole | left(found.definition, whole, integers(content.tensors))


def reference(kind: str, found: Found, workload: Workload, content: Content) -> dict[str, Tensor]:
    """One call of the definition's reference: float32, rounded where the definition says."""
    doing = f"running {found.definition.reference} for a step of a session"
    with torch.no_grad(), running(found.family, doing):
        values = function(found.family, found.definition.reference)(**arguments(found, content))
    return outputs(found, content, values)


def emulator(words: SessionWords, name: str) -> Run:
    """Calls of the emulator with this name."""

    def run(kind: str, found: Found, workload: Workload, content: Content) -> dict[str, Tensor]:
        oracle = function(found.family, found.definition.reference)
        call = Emulated(found.definition, False, arguments(found, content), oracle, in_chunks(found))
        with torch.no_grad(), running(found.family, f"running the emulator {name} of {found.definition.name}"):
            return outputs(found, content, words.emulate(call, name))

    return run
