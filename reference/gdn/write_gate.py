"""How far a raw write gate goes: beta is its sigmoid, or twice that."""

from collections.abc import Mapping
from typing import Any

from gdnspec.family import Definition

SWITCH = "allow_neg_eigval"  # a scalar input: whether beta may pass 1


def factor(definition: Definition, values: Mapping[str, Any]) -> int:
    """What the sigmoid of a raw write gate is multiplied by: 1 or 2. `values` has the scalars that a call gives."""
    always = definition.conventions.update_gate == "raw_doubled"
    return 2 if always or bool(values.get(SWITCH, False)) else 1
