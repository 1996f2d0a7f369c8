"""Rows of inputs that are slices of something wider: two of every definition that takes strides."""

from collections.abc import Iterator

from gdnspec.family import Definition

from .rows import Line, Rows

# Of each suite: the row's name, what gaps are multiples of, and what it covers.
SLICED = {
    "smoke": ("strided_inputs", 16, "inputs that are slices of something wider"),
    "conformance": ("strided_inputs_odd", 5, "slices, their rows on no boundary"),
}


def sliced(definition: Definition, smoke: Rows) -> Iterator[tuple[str, Line]]:
    """Suite and row: the first of `smoke` again, each input that takes strides with a gap of its own."""
    strided = [tensor.name for tensor in definition.inputs if tensor.strides is not None]
    for suite, (name, multiple, covers) in SLICED.items() if strided else ():
        gaps = {tensor: multiple * (i + 1) for i, tensor in enumerate(strided)}
        yield suite, {**next(smoke()), "name": name, "gaps": gaps, "covers": covers}
