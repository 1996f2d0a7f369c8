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

QUIET = {"float32": (torch.int32, 0x7FC00000, 0x3FFFFF), "bfloat16": (torch.int16, 0x7FC0, 0x3F)}


@dataclass(frozen=True, eq=False)
class Pools:
    """The states, and those of the convolution or None. Every slot starts with NaN, and no two with the same bits
    nearby: a copy of what nobody may read shows."""

    states: Tensor
    pasts: Tensor | None

    def copy(self) -> "Pools":
        return Pools(self.states.clone(), None if self.pasts is None else self.pasts.clone())


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

    def pool(self, kind: str) -> TensorModel:
        """The pool of the definition that serves a kind of call."""
        return self.served[kind].definition.input(self.words.roles[kind]["pool"])

    def pools(self) -> Pools:
        """The pools before the first step."""
        pasts = self._poisoned("convolve") if self.line.convolution else None
        return Pools(self._poisoned("decode"), pasts)

    def _poisoned(self, kind: str) -> Tensor:
        definition, tensor = self.served[kind].definition, self.pool(kind)
        sizes = definition.bind({**self._const(kind), **{axis.name: 1 for axis in definition.var_axes()}})
        shape = self.line.slots, *definition.shape(tensor, sizes)[1:]
        integers, quiet, payload = QUIET[tensor.dtype]
        slot = torch.arange(self.line.slots).remainder(payload) + 1
        bits = (quiet + slot).to(integers).view(-1, *[1] * (len(shape) - 1))
        return bits.expand(shape).contiguous().view(TORCH[tensor.dtype])

    def _const(self, kind: str) -> dict[str, int]:
        return {axis: self.preset.axes[axis] for axis in self.served[kind].definition.const_axes()}

    def scope_of(self, kind: str, slots: list[int]) -> dict[str, object]:
        """The scope in which the pool of a kind of call is judged on these slots."""
        definition = self.served[kind].definition
        axes = definition.bind({**self._const(kind), **{axis.name: 1 for axis in definition.var_axes()}})
        return {**axes, self.words.roles[kind]["write"]: slots}
