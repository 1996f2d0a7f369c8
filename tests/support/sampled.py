"""What a parameter of tests takes in the quick run, and what in the thorough one alone."""

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import pytest


def one_in(count: int, values: Iterable[Any], ids: Iterable[str] | None = None) -> list[Any]:
    """All values. The quick run has the first of every `count`."""
    named = zip(values, ids if ids is not None else repeat(None))  # noqa: B905
    return [
        pytest.param(value, id=name, marks=[pytest.mark.thorough] * (i % count > 0))
        for i, (value, name) in enumerate(named)
    ]
