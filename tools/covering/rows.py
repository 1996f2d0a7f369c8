"""The rows that every definition gets by its inputs and axes alone: `covering(found)`."""

from collections.abc import Iterator

from gdnspec.catalog.definitions import Found

from covering.build import Line
from covering.gates import gate_rows
from covering.seeds import with_seed


def covering(found: Found) -> Iterator[Line]:
    """Rows of the conformance suite, each with a seed on which honest arithmetic keeps well within a budget."""
    for row in gate_rows(found):
        yield with_seed(found, row)
