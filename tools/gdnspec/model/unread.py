"""The parts of the inputs that a call must not read, derived from a definition's slots, flags and bounds.

A row whose slots all say so is skipped with its tokens. In a pool, a call reads only the slots that it names for
reading. It reads no slot if a flag says that the sequence starts without a state, or if `read_if` is false.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from math import prod
from typing import Any

from gdnspec.model.codes import naming
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.elements import COLUMN, Scope, Tensor
from gdnspec.model.expression import parse
from gdnspec.model.roles import axis, bounds, padding

Values = Mapping[str, Any]


def unread(definition: Definition, scope: Scope, values: Values) -> dict[str, list[int]]:
    """For each input of floats or codes, the indices along its first dimension that the call does not read. Inputs that
    are read completely are left out. `scope` binds the axes; `values` maps each integer input to its flat list of
    values. Raises `ExpressionError`."""
    found = {}
    for tensor in definition.inputs:
        if not (tensor.dtype in FLOATS or tensor.is_code) or not tensor.shape:
            continue
        size = definition.shape(tensor, scope)[0]
        if naming(definition, tensor):
            read = set(_slots_read(definition, tensor, scope, values))
            indices = [slot for slot in range(size) if slot not in read]
        elif tensor.shape[0] == axis(definition, "tokens"):
            indices = _tokens_unread(definition, size, scope, values)
        else:
            indices = _skipped(definition, str(tensor.shape[0]), scope, values)
        if indices:
            found[tensor.name] = indices
    return found


def _rows(definition: Definition, tensor: Tensor, scope: Scope, values: Values) -> list[list[int]]:
    """The values of an integer input, row by row."""
    count, *rest = definition.shape(tensor, scope)
    each, flat = prod(rest), list(values[tensor.name])
    return [flat[n * each : (n + 1) * each] for n in range(count)]


def _first_axis(tensor: Tensor) -> str:
    return str((tensor.shape or [""])[0])


def _skipped(definition: Definition, axis: str, scope: Scope, values: Values) -> list[int]:
    """The rows whose slots are all -1; empty if no input names slots for the rows of this axis."""
    naming = [tensor for tensor in definition.inputs if tensor.indexes is not None and _first_axis(tensor) == axis]
    rows = zip(*(_rows(definition, tensor, scope, values) for tensor in naming), strict=True)
    return [n for n, slots in enumerate(rows) if all(slot == padding(definition) for slot in chain(*slots))]


def _tokens_unread(definition: Definition, size: int, scope: Scope, values: Values) -> list[int]:
    """The tokens of skipped sequences, and those before the first sequence or after the last."""
    name = bounds(definition)
    if name is None:
        return []
    starts = list(values[name])
    axes = {_first_axis(tensor) for tensor in definition.inputs if tensor.indexes is not None}
    skipped = {n for axis in axes for n in _skipped(definition, axis, scope, values)}
    outside = chain(range(starts[0]), range(starts[-1], size))
    return sorted(chain(outside, *(range(starts[n], starts[n + 1]) for n in skipped)))


def _slots_read(definition: Definition, pool: Tensor, scope: Scope, values: Values) -> Iterator[int]:
    """The slots of a pool whose content matters: those that are read or that an empty sequence leaves unchanged."""
    name = bounds(definition)
    for tensor in naming(definition, pool):
        alone = [other for other in definition.inputs if other.is_index and other.shape == [_first_axis(tensor)]]
        condition = None if tensor.read_if is None else parse(tensor.read_if)
        for n, row in enumerate(_rows(definition, tensor, scope, values)):
            empty = name is not None and values[name][n] == values[name][n + 1]
            if not empty and not all(values[other.name][n] for other in alone if other.is_flag):
                continue
            here = {**scope, **{other.name: values[other.name][n] for other in alone}}
            for column, slot in enumerate(row):
                if slot > padding(definition) and (
                    empty or condition is None or condition.holds({**here, COLUMN: column})
                ):
                    yield slot
