"""Pools: what a call leaves in them, what it must not change, and a copy of a call with only the slots that it
names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdnspec.inputs.array import Array
from gdnspec.inputs.materialise import Inputs
from gdnspec.model.codes import pools
from gdnspec.model.definition import Definition
from gdnspec.model.roles import padding
from gdnspec.numerics.judge import Verdict

COMPARED = 1 << 30  # bytes per step


def integers(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The values of integer and boolean inputs, flat."""
    whole = {name: x for name, x in tensors.items() if x.dtype in (torch.int32, torch.int64, torch.bool)}
    return {name: x.flatten().tolist() for name, x in whole.items()}


def left(definition: Definition, after: Mapping[str, Tensor], values: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The judged part of each mutated input: all of it, or the slots that `values` name for writing, in order."""
    found = {}
    for model in definition.inputs:
        if model.mutates:
            written = definition.written(model, values)
            found[model.name] = after[model.name] if written is None else after[model.name][written]
    return found


def named_slots(definition: Definition, values: Mapping[str, Any]) -> dict[str, list[int]]:
    """The slots of each pool that a call names for reading or writing, in order. `values`: the integer inputs."""
    named: dict[str, set[int]] = {}
    for tensor in definition.inputs:
        for pool in pools(definition, tensor):
            named.setdefault(pool, set()).update(slot for slot in values[tensor.name] if slot >= 0)
            if padding(definition) == 0:
                named[pool].add(0)  # it keeps its place, whether or not a row is skipped
    return {pool: sorted(slots) for pool, slots in named.items()}


def untouched(definition: Definition, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Verdict | None:
    """A verdict if the call changed a slot that no row writes: these must stay the same, bit for bit."""
    for model in definition.inputs:
        written = definition.written(model, integers(before)) if model.mutates else None
        if written is None:
            continue
        changed = sorted(set(changed_rows(after[model.name], before[model.name])) - set(written))
        if changed:
            return Verdict(
                "MUTATED_INPUT", f"the call wrote to slot {changed[0]} of {model.name}, which no row names for writing"
            )
    return None


def changed_rows(a: Tensor, b: Tensor) -> list[int]:
    """The indices along the first dimension at which two tensors differ in their bits."""
    changed: list[int] = []
    step = max(1, COMPARED // max(1, a[:1].nbytes))
    for start in range(0, len(a), step):
        x, y = (t[start : start + step].contiguous().flatten(1).view(torch.uint8) for t in (a, b))
        if not torch.equal(x, y):
            changed += (start + (x != y).any(1).nonzero().flatten()).tolist()
    return changed


def compact(definition: Definition, inputs: Inputs) -> Inputs:
    """The same call with pools that have only the slots that it names, in order: the float64 reference then needs no
    memory for the others. Unchanged if nothing is indexed."""
    tensors, scope = dict(inputs.tensors), dict(inputs.scope)
    slots = named_slots(definition, scope)
    for pool, named in slots.items():
        tensors[pool] = Array(tensors[pool].dtype, np.ascontiguousarray(tensors[pool].data[named]))
    for tensor in definition.inputs:
        if tensor.indexes is not None:
            place = {slot: i for i, slot in enumerate(slots[tensor.indexes])}
            scope[tensor.name] = [place.get(slot, slot) for slot in scope[tensor.name]]
            data = tensors[tensor.name].data
            moved = np.array(scope[tensor.name], dtype=data.dtype).reshape(data.shape)
            tensors[tensor.name] = Array(tensor.dtype, moved)
    return replace(inputs, tensors=tensors, scope=scope)
