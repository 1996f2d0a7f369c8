"""A session with its tokens and the truth of every step, which all solutions share."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.families import Family
from gdnspec.catalog.sessions import serving
from gdnspec.inputs.session_contract import SessionWords
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.preset import Preset
from gdnspec.model.session_line import SessionLine
from gdnspec.sandbox.wire.arena import TORCH
from gdnspec.sessions.token_streams import Tokens, draw, preset_of, words
from gdnspec.sessions.truth import Expected, Truth

WINDOWS = "convolve_tree"  # the kind of call that has the buffer of the convolution's windows
QUIET = {"float32": (torch.int32, 0x7FC00000, 0x3FFFFF), "bfloat16": (torch.int16, 0x7FC0, 0x3F)}


@dataclass(frozen=True, eq=False)
class Pools:
    """The states, those of the convolution or None, and the buffers of steps of both, [slots, drafts, ..] or None.
    Every slot starts with NaN, and no two with the same bits nearby: a copy of what nobody may read shows."""

    states: Tensor
    pasts: Tensor | None
    steps: Tensor | None = None
    windows: Tensor | None = None

    def copy(self) -> "Pools":
        others = (None if x is None else x.clone() for x in (self.pasts, self.steps, self.windows))
        return Pools(self.states.clone(), *others)


@dataclass(frozen=True, eq=False)
class Case:
    """`served`: the definition of each kind of call. `expected`: what each step leaves behind."""

    family: Family
    line: SessionLine
    preset: Preset
    words: SessionWords
    served: Mapping[str, Found]
    tokens: Tokens
    expected: list[Expected]

    @staticmethod
    def of(family: Family, line: SessionLine) -> "Case":
        """Raises `InvalidWorkload`, `SpecError`."""
        rule, preset, tokens = words(family), preset_of(family, line), draw(family, line)
        truth = Truth(line, tokens, rule, preset.axes)
        expected = [truth.expected(step) for step in line.steps]
        return Case(family, line, preset, rule, serving(family, line), tokens, expected)

    def pool(self, kind: str, role: str = "pool") -> TensorModel:
        """The pool of the definition that serves a kind of call, or its buffer of steps."""
        return self.served[kind].definition.input(self.words.roles[kind][role])

    @property
    def buffered(self) -> str | None:
        """A kind of call that has the buffer of steps; None if none has."""
        return next((kind for kind in ("draft", "tree") if kind in self.served), None)

    @property
    def convolved(self) -> str:
        """The kind of call whose pool holds the states of the convolution."""
        return "convolve_drafts" if "convolve_drafts" in self.served else "convolve"

    def pools(self) -> Pools:
        """The pools before the first step."""
        pasts = self._poisoned(self.convolved) if self.line.convolution else None
        steps = None if self.buffered is None else self._poisoned(self.buffered, "steps")
        windows = self._poisoned(WINDOWS, "steps") if WINDOWS in self.served else None
        return Pools(self._poisoned("decode"), pasts, steps, windows)

    def _poisoned(self, kind: str, role: str = "pool") -> Tensor:
        definition, tensor = self.served[kind].definition, self.pool(kind, role)
        shape = self.line.slots, *definition.shape(tensor, self._sizes(kind))[1:]
        integers, quiet, payload = QUIET[tensor.dtype]
        slot = torch.arange(self.line.slots).remainder(payload) + 1
        bits = (quiet + slot).to(integers).view(-1, *[1] * (len(shape) - 1))
        return bits.expand(shape).contiguous().view(TORCH[tensor.dtype])

    def _sizes(self, kind: str) -> dict[str, int]:
        """All axes of a kind of call, with one of each that the session does not fix."""
        definition = self.served[kind].definition
        const = {axis: self.preset.axes[axis] for axis in definition.const_axes()}
        var = {axis.name: self.line.drafts if axis.role == "drafts" else 1 for axis in definition.var_axes()}
        return {**definition.bind({**const, **var})}

    def scope_of(self, kind: str, slots: list[int]) -> dict[str, object]:
        """The scope in which the pool of a kind of call is judged on these slots."""
        return {**self._sizes(kind), self.words.roles[kind]["write"]: slots}
