"""The rows that every definition gets by its inputs and axes alone: `covering(published, by_hand, share)`."""

import re
from collections.abc import Callable, Iterator

from gdnspec.family import Published, Workload

from ..line import Line
from . import pairs, scalars, sizes
from .gates import gate_rows
from .names import BY_HAND
from .seeds import Seeds

PREFIX = "pairs_"
OF_PAIRS = re.compile(PREFIX + r"\d{2,3}")  # not pairs_66048, which says how many there are


def covering(published: Published, by_hand: list[Line], share: Callable[[Workload], float | None]) -> Iterator[Line]:
    """Rows of the conformance suite beside those `by_hand`: gates in all regions, pairs of levels, sizes.

    Rows of pairs that the definition's file holds are kept as they are; more follow while any pair is missing. Each row
    has a seed on which honest arithmetic keeps well within a budget.
    """
    if published.definition.name in BY_HAND:
        return
    seeds = Seeds(published, share)
    rows = [seeds.seeded(row) for row in gate_rows(published)]
    rows += [row for name, row in seeds.rows.items() if OF_PAIRS.fullmatch(name)]
    known = [_workload(row) for row in (*by_hand, *rows)]
    number = 1 + max((int(row.name.removeprefix(PREFIX)) for row in known if OF_PAIRS.fullmatch(row.name)), default=0)
    rows += pairs.rows_for(published, known, number, seeds.seeded_or_none)
    known = [_workload(row) for row in (*by_hand, *rows)]
    for part in (scalars, sizes):
        rows += [seeds.seeded(row) for row in part.rows_for(published, known)]
        known = [_workload(row) for row in (*by_hand, *rows)]
    yield from rows


def _workload(row: Line) -> Workload:
    source = {} if row.get("tensors") else {"seed": 0}
    return Workload.model_validate({"suite": "conformance", **source, **row})
