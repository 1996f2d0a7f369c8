"""The rows that every definition gets by its inputs and axes alone: `covering(found, by_hand)`."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from gdnspec.catalog.definitions import Found
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload

from covering import pairs, scalars, sizes
from covering.build import Line
from covering.gates import gate_rows
from covering.seeds import stands, with_seed, without

PREFIX = "pairs_"
OF_PAIRS = re.compile(PREFIX + r"\d{2,3}")  # not pairs_66048, which says how many there are


def covering(found: Found, by_hand: list[Line]) -> Iterator[Line]:
    """Rows of the conformance suite beside those `by_hand`: gates in all regions, pairs of levels, sizes.

    Rows of pairs that the definition's file holds are kept as they are; more follow while any pair is missing. Each row
    has a seed on which honest arithmetic keeps well within a budget.
    """
    rows = [with_seed(found, row) for row in gate_rows(found)]
    rows += [without(row) for name, row in stands(found.workloads_file).items() if OF_PAIRS.fullmatch(name)]
    known = [_workload(row) for row in (*by_hand, *rows)]
    number = 1 + max((int(row.name.removeprefix(PREFIX)) for row in known if OF_PAIRS.fullmatch(row.name)), default=0)
    rows += pairs.rows_for(found, known, number, partial(_or_none, found))
    known = [_workload(row) for row in (*by_hand, *rows)]
    for part in (scalars, sizes):
        rows += [with_seed(found, row) for row in part.rows_for(found, known)]
        known = [_workload(row) for row in (*by_hand, *rows)]
    yield from rows


def _or_none(found: Found, row: Line) -> Line | None:
    try:
        return with_seed(found, row)
    except SpecError:
        return None


def _workload(row: dict[str, Any]) -> Workload:
    source = {} if row.get("tensors") else {"seed": 0}
    return Workload.model_validate({"suite": "conformance", **source, **row})
