"""Kernels treat a pair of absent inputs apart by mistake. So rows of a definition have each two of its optional tensors
both given, both absent, and one without the other."""

from itertools import combinations, product

import pytest
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.workloads import workloads


@pytest.mark.parametrize("name", sorted(definitions()))
def test_rows_have_each_two_of_them_in_all_four_ways(name: str) -> None:
    found = definitions()[name]
    optional = [x.name for x in found.definition.inputs if x.optional and x.shape]
    rows = [x for x in workloads(found) if x.suite in ("smoke", "conformance")]
    seen = {
        (one, other, one in row.omit, other in row.omit) for row in rows for one, other in combinations(optional, 2)
    }
    wanted = {(*pair, *absent) for pair in combinations(optional, 2) for absent in product((False, True), repeat=2)}
    assert wanted <= seen
