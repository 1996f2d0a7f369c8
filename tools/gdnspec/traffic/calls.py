"""The work of one call, computed from the few numbers that it depends on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gdnspec.catalog.definitions import Found
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.floor import Work, work


class Shape(NamedTuple):
    """The numbers that the work of a call depends on. `carried`: whether any sequence has an initial state. `pieces`:
    totals of what the definition counts per sequence, such as checkpoints."""

    tokens: int
    sequences: int
    longest: int
    carried: bool
    pieces: tuple[int, ...] = ()

    @classmethod
    def of(cls, lengths: Sequence[int], carried: bool, pieces: tuple[int, ...] = ()) -> "Shape":
        return cls(sum(lengths), len(lengths), max(lengths, default=0), carried, pieces)


@dataclass(frozen=True, eq=False)
class Operator:
    """A definition with a preset. `each`: tokens per row of a verify. `interval`: the value of integer scalars, which
    count tokens, such as those between two checkpoints."""

    found: Found
    preset: str
    each: int = 1
    interval: int = 512

    @property
    def ragged(self) -> bool:
        return self.found.definition.conventions.packing == "ragged"

    def line(self, name: str, lengths: Sequence[int], carried: bool, seed: int, weight: int | None = None) -> Workload:
        """A workload with sequences of these lengths; for a decode or verify, with as many rows."""
        from gdnspec.traffic.engine_slots import rows_of

        line: dict[str, object] = {
            "name": name, "suite": "performance", "preset": self.preset, "regime": "typical", "seed": seed,
            "weight": weight,
        }  # fmt: skip
        definition, scalars = self.found.definition, self._scalars()
        each = list(lengths) if self.ragged else [self.each] * len(lengths)
        slots, integers = rows_of(definition, len(lengths), 1 if self.ragged else self.each, seed)
        line |= {"axes": roles.sizes(definition, each, scalars) | slots, "integers": integers, "scalars": scalars}
        if self.ragged:
            line["sequence_lengths"] = list(lengths)
            line["omit"] = [] if carried else states_left_out(definition)
        return Workload.model_validate(line)

    def shape(self, lengths: Sequence[int], carried: bool) -> Shape:
        """The shape of a call on sequences of these lengths, or on as many rows."""
        return Shape.of(lengths, carried, self._pieces(lengths))

    def _scalars(self) -> dict[str, int]:
        """A value for every integer scalar that a line must give."""
        needed = (t for t in self.found.definition.inputs if t.is_scalar and t.dtype in INTEGERS and not t.optional)
        return {tensor.name: self.interval for tensor in needed}

    def _pieces(self, lengths: Sequence[int]) -> tuple[int, ...]:
        texts = roles.counted(self.found.definition).values()
        return tuple(sum(roles.count(text, length, self._scalars()) for length in lengths) for text in texts)

    def work(self, shape: Shape) -> Work:
        """Bytes and operations of a call. Both are linear in the numbers of its shape."""
        counts = (1, shape.tokens if self.ragged else 0, shape.sequences, *shape.pieces)
        parts = self._linear[shape.carried or not self.ragged]
        return Work(
            sum(count * part.bytes for count, part in zip(counts, parts, strict=True)),
            sum(count * part.operations for count, part in zip(counts, parts, strict=True)),
        )

    @cached_property
    def _linear(self) -> dict[bool, tuple[Work, ...]]:
        """With and without initial states: the work of a call itself, and what each token, each sequence and each piece
        adds. All tokens of a row count as one."""
        return {carried: self._fitted(carried) for carried in ((False, True) if self.ragged else (True,))}

    def _fitted(self, carried: bool) -> tuple[Work, ...]:
        """Finds the numbers from small calls: one more than there are unknowns, so that an error shows."""
        n = self.interval
        if not self.ragged:
            calls = [[self.each] * rows for rows in (1, 2, 5)]
            counts: list[tuple[int, ...]] = [(1, 0, len(call)) for call in calls]
        else:
            calls = [[1], [2], [1, 1], [n], [n, 1, n + 1], [3 * n + 1, n, 0, 5]]
            counts = [(1, sum(call), len(call), *self._pieces(call)) for call in calls]
        found = [self._probe(call, carried) for call in calls]
        return tuple(
            Work(*pair)
            for pair in zip(
                self._solved(counts, [work.bytes for work in found]),
                self._solved(counts, [work.operations for work in found]),
                strict=True,
            )
        )

    def _solved(self, counts: Sequence[Sequence[int]], values: Sequence[int]) -> list[int]:
        """What each unit of a count adds. Raises `SpecError` if the values are not linear in the counts."""
        solution = np.linalg.lstsq(np.array(counts, dtype=np.float64), np.array(values, dtype=np.float64), rcond=None)
        found = [round(x) for x in solution[0]]
        if [sum(n * x for n, x in zip(row, found, strict=True)) for row in counts] != list(values):
            raise SpecError(
                f"the work of {self.found.definition.name} is not linear in its tokens and sequences, so a log cannot "
                "be replayed for it"
            )
        return found

    def _probe(self, lengths: Sequence[int], carried: bool) -> Work:
        return work(self.found, self.line("probe", lengths, carried, 0))


def states_left_out(definition: Definition) -> list[str]:
    """The inputs that a call without initial states leaves out."""
    return [tensor.name for tensor in definition.inputs if tensor.optional and roles.is_state(definition, tensor)]
