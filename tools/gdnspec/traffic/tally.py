"""Steps counted by what their kernels see: calls that are alike are one call that occurs so often."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gdnspec.traffic.calls import Operator
from gdnspec.traffic.engine import Step


class Call(NamedTuple):
    """One call of an operator, `times` over: sequence lengths, or as many ones as there are rows."""

    lengths: tuple[int, ...]
    carried: bool
    times: int


@dataclass
class Tally:
    """What the steps of an engine have called for, in the order in which it first occurred."""

    prefills: dict[tuple[tuple[int, ...], bool], int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        if step.lengths:
            key = (step.lengths, any(step.carried))
            self.prefills[key] = self.prefills.get(key, 0) + step.times
        if step.rows:
            self.rows[step.rows] = self.rows.get(step.rows, 0) + step.times

    def calls(self, operator: Operator) -> Iterable[Call]:
        """Those that a definition of this kind serves."""
        if operator.ragged:
            return (Call(lengths, carried, times) for (lengths, carried), times in self.prefills.items())
        return (Call((operator.each,) * rows, True, times) for rows, times in sorted(self.rows.items()))
