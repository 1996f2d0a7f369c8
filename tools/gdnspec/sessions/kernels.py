"""The calls of a session: what the scheduler says in tokens and slots becomes the inputs of a definition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gdnspec.catalog.definitions import Found
from gdnspec.check.content import Content
from gdnspec.inputs.materialise import scalars
from gdnspec.inputs.session_contract import MIXED, SessionWords
from gdnspec.model import roles
from gdnspec.model.preset import Preset
from gdnspec.model.session_line import SessionLine
from gdnspec.model.workload import Workload
from gdnspec.sandbox.wire.arena import TORCH

# Runs one call: its kind, definition, line and content. Returns outputs, and of each pool the written slots in order.
Run = Callable[[str, Found, Workload, Content], dict[str, Tensor]]
SKIPPED = -1  # the slot of a row that pads


@dataclass(frozen=True, eq=False)
class Made:
    """A call that was made, and its output."""

    kind: str
    found: Found
    content: Content
    output: Tensor


@dataclass(eq=False)
class Kernels:
    """The entries that a session calls. `made`: the calls so far, until the judge takes them."""

    line: SessionLine
    preset: Preset
    words: SessionWords
    served: Mapping[str, Found]
    weights: Mapping[str, Tensor]
    run: Run
    made: list[Made] = field(default_factory=list)

    def prefill(self, tokens: Mapping[str, Tensor], lengths: Sequence[int], before: Tensor | None) -> Tensor:
        """Whole pieces of sequences, from states [sequences, ..] or from nothing. Returns the states after them."""
        found = self._ragged("prefill", tokens, lengths, self._before("prefill", before), {})
        return found[self.words.roles["prefill"]["after"]]

    def keep(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], before: Tensor | None, interval: int
    ) -> tuple[Tensor, list[Tensor]]:
        """As `prefill`. Returns also the states after every `interval` tokens of each sequence."""
        names = self.words.roles["keep"]
        found = self._ragged("keep", tokens, lengths, self._before("keep", before), {names["interval"]: interval})
        kept = list(torch.split(found[names["kept"]], [length // interval for length in lengths]))
        return found[names["after"]], kept

    def decode(self, tokens: Mapping[str, Tensor], pool: Tensor, read: Sequence[int], write: Sequence[int]) -> None:
        """One token of each row, from slot `read` of the pool to slot `write`."""
        self._rows("decode", tokens, 1, pool, {"read": read, "write": write})

    def verify(
        self, tokens: Mapping[str, Tensor], each: int, pool: Tensor, base: Sequence[int],
        slots: Sequence[Sequence[int]], accepted: Sequence[int],
    ) -> None:  # fmt: skip
        """`each` drafts of each row; the state after draft t goes to slots[row][t]."""
        flat = [slot for row in slots for slot in row]
        self._rows("verify", tokens, each, pool, {"read": base, "write": flat, "accepted": accepted})

    def convolve(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], pool: Tensor, slots: Sequence[int],
        flags: Sequence[bool],
    ) -> Tensor:  # fmt: skip
        """Whole pieces through the convolution, whose states are in `pool`. Returns its output."""
        names = self.words.roles["convolve"]
        integers = {names["write"]: list(slots), names["flags"]: [int(flag) for flag in flags]}
        found = self._ragged("convolve", tokens, lengths, {names["pool"]: pool}, {}, integers)
        self._wrote("convolve", pool, integers[names["write"]], found)
        return found[names["output"]]

    def convolve_one(self, tokens: Mapping[str, Tensor], pool: Tensor, slots: Sequence[int]) -> Tensor:
        """One token of each row through the convolution. Returns its output."""
        return self._rows("convolve_one", tokens, 1, pool, {"write": slots})

    def take_made(self) -> list[Made]:
        """The calls since the last time."""
        made, self.made = self.made, []
        return made

    # --- one call -----------------------------------------------------------------------------------------------

    def _before(self, kind: str, states: Tensor | None) -> dict[str, Tensor]:
        return {} if states is None else {self.words.roles[kind]["before"]: states}

    def _ragged(
        self, kind: str, tokens: Mapping[str, Tensor], lengths: Sequence[int], tensors: dict[str, Tensor],
        given: dict[str, int], integers: dict[str, list[int]] | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        return self._call(kind, tokens, list(lengths), 1, tensors, given, integers or {})

    def _rows(
        self, kind: str, tokens: Mapping[str, Tensor], each: int, pool: Tensor, slots: Mapping[str, Sequence[int]]
    ) -> Tensor:
        names = self.words.roles[kind]
        integers = {names[role]: list(values) for role, values in slots.items()}
        rows = len(slots["write"]) // each
        found = self._call(kind, tokens, [each] * rows, each, {names["pool"]: pool}, {}, integers)
        self._wrote(kind, pool, integers[names["write"]], found)
        return found[names["output"]]

    def _wrote(self, kind: str, pool: Tensor, slots: Sequence[int], found: Mapping[str, Tensor]) -> None:
        """Puts what a call left in its slots into the pool."""
        pool[sorted({slot for slot in slots if slot >= 0})] = found[self.words.roles[kind]["pool"]]

    def _call(
        self, kind: str, tokens: Mapping[str, Tensor], lengths: list[int], each: int, tensors: dict[str, Tensor],
        given: dict[str, int], integers: dict[str, list[int]],
    ) -> dict[str, Tensor]:  # fmt: skip
        found = self.served[kind]
        model = found.definition
        tensors = {**self.words.inputs(kind, tokens, self.weights, self.preset.axes, each), **tensors}
        axes = roles.sizes(model, lengths, given)
        place, pool = roles.axis(model, "slots"), self.words.roles[kind].get("pool")
        if place is not None and pool is not None:
            axes[place] = len(tensors[pool])
        index = {tensor.name for tensor in model.inputs if tensor.is_index}
        absent = [t.name for t in model.inputs if t.name not in tensors and not t.is_scalar and t.name not in index]
        workload = Workload(
            name=kind, suite="conformance", preset=self.line.preset, axes=axes, regime=self.line.regime,
            seed=self.line.seed, omit=absent, integers=integers,
            scalars={**self.words.scalars(kind, self.line.convolution), **given},
            sequence_lengths=lengths if model.conventions.packing == "ragged" else None,
        )  # fmt: skip
        workload.check(model, self.preset)
        scope = workload.scope(model, self.preset)
        for tensor in model.inputs:
            if tensor.is_index:
                values = torch.tensor(scope[tensor.name], dtype=TORCH[tensor.dtype])
                tensors[tensor.name] = values.reshape(model.shape(tensor, scope))
        ordered = {t.name: tensors[t.name] for t in model.inputs if t.name in tensors}
        content = Content(ordered, scalars(found, workload, scope), scope)
        answer = self.run(kind, found, workload, content)
        self.made.append(Made(kind, found, content, answer[self.words.roles[kind]["output"]]))
        return answer


def with_mixed(tokens: Mapping[str, Tensor], mixed: Tensor | None) -> dict[str, Tensor]:
    """The tokens, and what the convolution made of them."""
    return dict(tokens) if mixed is None else {**tokens, MIXED: mixed}
