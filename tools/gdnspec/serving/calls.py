"""One call of a definition's operator, described by the few numbers that its work depends on, and that work."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gdnspec.catalog.definitions import Found
from gdnspec.model.checkpoints import COUNT, INTERVAL, keeps_checkpoints, starts
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.timing.floor import Work, work

DRAFTS = "draft_tokens"  # the axis of a verify


class Shape(NamedTuple):
    """`carried`: whether there is an initial state, of some sequence at least."""

    tokens: int
    sequences: int
    longest: int
    carried: bool

    @classmethod
    def of(cls, lengths: Sequence[int], carried: bool) -> "Shape":
        return cls(sum(lengths), len(lengths), max(lengths, default=0), carried)


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
        from gdnspec.serving.slots import rows_of

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
        omit = [] if carried else ["initial_state"]
        return Workload.model_validate({**line, "axes": axes, "sequence_lengths": list(lengths), "omit": omit})

    def work(self, shape: Shape) -> Work:
        """Bytes and operations of a call, from the definition by way of the numbers that they are linear in."""
        fixed, token, sequence = self._linear[shape.carried or not self.ragged]
        return Work(
            fixed.bytes + token.bytes * shape.tokens + sequence.bytes * shape.sequences,
            fixed.operations + token.operations * shape.tokens + sequence.operations * shape.sequences,
        )

    @cached_property
    def _linear(self) -> dict[bool, tuple[Work, Work, Work]]:
        """Carried or not: what a call has, what each token adds, and each sequence. A row's tokens count as one."""
        return {carried: self._fitted(carried) for carried in ((False, True) if self.ragged else (True,))}

    def _fitted(self, carried: bool) -> tuple[Work, Work, Work]:
        if not self.ragged:
            one, two, five = (self._probe([self.each] * n, carried) for n in (1, 2, 5))
            each = Work(two.bytes - one.bytes, two.operations - one.operations)
            self._hold(one.bytes + 4 * each.bytes == five.bytes)
            none = Work(0, 0)
            return Work(one.bytes - each.bytes, one.operations - each.operations), none, each
        # Lengths that are whole intervals, so that the states of checkpoints go with the tokens.
        n = self.interval
        one, longer, two, many = (self._probe(x, carried) for x in ([n], [2 * n], [n, n], [3 * n, n, 0, 2 * n]))
        token = Work((longer.bytes - one.bytes) // n, (longer.operations - one.operations) // n)
        # The second sequence of `two` brings its tokens along.
        sequence = Work(two.bytes - longer.bytes, two.operations - longer.operations)
        fixed = Work(
            one.bytes - n * token.bytes - sequence.bytes, one.operations - n * token.operations - sequence.operations
        )
        self._hold(fixed.bytes + 6 * n * token.bytes + 4 * sequence.bytes == many.bytes)
        return fixed, token, sequence

    def _probe(self, lengths: Sequence[int], carried: bool) -> Work:
        return work(self.found, self.line("probe", lengths, carried, 0))

    def _hold(self, linear: bool) -> None:
        if not linear:
            raise SpecError(f"what {self.found.definition.name} moves does not go with its tokens and sequences")
