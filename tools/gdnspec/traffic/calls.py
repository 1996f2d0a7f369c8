"""One call of a definition's operator, described by the few numbers that its work depends on, and that work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gdnspec.catalog.definitions import Found
from gdnspec.model.checkpoints import COUNT, INTERVAL, keeps_checkpoints, starts
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.floor import Work, work

DRAFTS = "draft_tokens"  # the axis of a verify


class Shape(NamedTuple):
    """`carried`: whether there is an initial state, of some sequence at least. `checkpoints` that are kept of all."""

    tokens: int
    sequences: int
    longest: int
    carried: bool
    checkpoints: int = 0

    @classmethod
    def of(cls, lengths: Sequence[int], carried: bool, interval: int | None = None) -> "Shape":
        kept = sum(length // interval for length in lengths) if interval else 0
        return cls(sum(lengths), len(lengths), max(lengths, default=0), carried, kept)


@dataclass(frozen=True, eq=False)
class Operator:
    """A definition with a preset. `each`: tokens of a row of a verify; `interval`: between checkpoints."""

    found: Found
    preset: str
    each: int = 1
    interval: int = 512

    @property
    def ragged(self) -> bool:
        return self.found.definition.conventions.packing == "ragged"

    def line(self, name: str, lengths: Sequence[int], carried: bool, seed: int, weight: int | None = None) -> Workload:
        """The workload of a prefill of these sequences; of a decode or verify, of as many rows."""
        from gdnspec.traffic.engine_slots import rows_of

        definition = self.found.definition
        line: dict[str, object] = {
            "name": name, "suite": "performance", "preset": self.preset, "regime": "typical", "seed": seed,
            "weight": weight,
        }  # fmt: skip
        if not self.ragged:
            axes, integers = rows_of(definition, len(lengths), self.each, seed)
            if any(axis.name == DRAFTS for axis in definition.var_axes()):
                axes[DRAFTS] = self.each
            return Workload.model_validate({**line, "axes": {"batch_size": len(lengths), **axes}, "integers": integers})
        axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
        if keeps_checkpoints(definition):
            line["scalars"] = {INTERVAL: self.interval}
            axes[COUNT] = starts(lengths, self.interval)[-1]
        more, integers = rows_of(definition, len(lengths), 1, seed)
        given = any(tensor.name == "initial_state" for tensor in definition.inputs)
        omit = ["initial_state"] if given and not carried else []
        return Workload.model_validate(
            {**line, "axes": axes | more, "sequence_lengths": list(lengths), "omit": omit, "integers": integers}
        )

    def shape(self, lengths: Sequence[int], carried: bool) -> Shape:
        """Of a call on sequences of these lengths, or on as many rows."""
        return Shape.of(lengths, carried, self.interval if keeps_checkpoints(self.found.definition) else None)

    def work(self, shape: Shape) -> Work:
        """Bytes and operations of a call, from the definition by way of the numbers that they are linear in."""
        counts = (1, shape.tokens if self.ragged else 0, shape.sequences, shape.checkpoints)
        parts = self._linear[shape.carried or not self.ragged]
        return Work(
            sum(count * part.bytes for count, part in zip(counts, parts, strict=True)),
            sum(count * part.operations for count, part in zip(counts, parts, strict=True)),
        )

    @cached_property
    def _linear(self) -> dict[bool, tuple[Work, Work, Work, Work]]:
        """Carried or not: what a call has, what each token adds, each sequence, each checkpoint. A row's tokens count
        as one."""
        return {carried: self._fitted(carried) for carried in ((False, True) if self.ragged else (True,))}

    def _fitted(self, carried: bool) -> tuple[Work, Work, Work, Work]:
        if not self.ragged:
            one, two, five = (self._probe([self.each] * n, carried) for n in (1, 2, 5))
            row = _less(two, one)
            self._hold(five, _sum((one, 1), (row, 4)))
            return _less(one, row), Work(0, 0), row, Work(0, 0)
        n = self.interval  # below it no checkpoint is kept
        one, longer, two, whole = (self._probe(x, carried) for x in ([1], [2], [1, 1], [n]))
        token = _less(longer, one)
        sequence = _less(two, longer)
        fixed = _less(_less(one, token), sequence)
        kept = keeps_checkpoints(self.found.definition)
        checkpoint = _less(whole, _sum((fixed, 1), (token, n), (sequence, 1))) if kept else Work(0, 0)
        many = self._probe([3 * n + 1, n, 0, 5], carried)
        self._hold(many, _sum((fixed, 1), (token, 4 * n + 6), (sequence, 4), (checkpoint, 4)))
        return fixed, token, sequence, checkpoint

    def _probe(self, lengths: Sequence[int], carried: bool) -> Work:
        return work(self.found, self.line("probe", lengths, carried, 0))

    def _hold(self, counted: Work, linear: Work) -> None:
        if counted != linear:
            raise SpecError(f"what {self.found.definition.name} takes does not go with its tokens and sequences")


def _less(a: Work, b: Work) -> Work:
    return Work(a.bytes - b.bytes, a.operations - b.operations)


def _sum(*terms: tuple[Work, int]) -> Work:
    return Work(sum(work.bytes * n for work, n in terms), sum(work.operations * n for work, n in terms))
