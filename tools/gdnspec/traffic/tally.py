"""Count the calls of an engine's steps. Equal calls become one call with a count."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gdnspec.traffic.calls import Operator
from gdnspec.traffic.engine import Step


class Call(NamedTuple):
    """A call of an operator that occurs `times` times. `lengths`: of sequences, or tokens of each row."""

    lengths: tuple[int, ...]
    carried: bool
    times: int


@dataclass
class Tally:
    """Counts of prefills and of batches of rows, in the order in which they first occurred."""

    prefills: Counter[tuple[tuple[int, ...], bool]] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)

    def add(self, step: Step) -> None:
        if step.lengths:
            self.prefills[step.lengths, any(step.carried)] += step.times
        if step.rows:
            self.rows[step.rows] += step.times

    def calls(self, operator: Operator) -> Iterable[Call]:
        """The calls that an operator gets: prefills if it takes sequences, otherwise batches of rows."""
        if operator.ragged:
            return (Call(lengths, carried, times) for (lengths, carried), times in self.prefills.items())
        return (Call((operator.each,) * rows, True, times) for rows, times in sorted(self.rows.items()))
