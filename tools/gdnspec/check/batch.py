"""Splits a batch into pieces of its sequences, and puts the outputs of calls on pieces back together."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gdnspec.check.call import Content
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.numerics.pools import integers


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a sequence."""

    sequence: int
    start: int
    stop: int


class Batch:
    """The sequences of one call, or its rows if the definition has one token per row."""

    def __init__(self, definition: Definition, content: Content) -> None:
        self.definition, self.content = definition, content
        self.ragged = definition.conventions.packing == "ragged"
        self.bounded_by = roles.bounds(definition)
        self.bounds: list[int] = content.tensors[self.bounded_by].tolist() if self.bounded_by is not None else []
        self.count = len(self.bounds) - 1 if self.ragged else roles.batch(definition, content.scope)
        self.given = dict(content.scalars)  # the number of pieces of a sequence may depend on these
        self.pieces = roles.counted(definition)
        self.starts_of = {t.bounds: t.name for t in definition.inputs if t.bounds is not None}
        self.per_row = roles.per_batch(definition)
        self.sums = [output.name for output in definition.outputs if roles.of_all(definition, output)]

    def whole(self, sequence: int) -> Piece:
        length = self.bounds[sequence + 1] - self.bounds[sequence] if self.ragged else 1
        return Piece(sequence, 0, length)

    def cuts(self, sequence: int) -> list[int]:
        """Where a sequence may be cut in two. If its pieces are counted, a cut is allowed only if the second part has
        the same pieces when it is counted as a sequence of its own."""
        length = self.whole(sequence).stop
        found = np.ones(length + 1, dtype=bool)
        for text in roles.indivisible(self.definition):
            counts = np.array([roles.count(text, n, self.given) for n in range(length + 1)])
            for cut in np.flatnonzero(found):
                found[cut] = np.array_equal(counts[cut:], counts[cut] + counts[: length + 1 - cut])
        return [int(cut) for cut in np.flatnonzero(found)]

    def carried(self, pieces: Sequence[Piece], outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs for a call on the rest of each sequence, after a call on `pieces` (their beginnings) left
        `outputs`: states, or pools with the written slots, and flags that tell the call to continue."""
        found: dict[str, Tensor] = {}
        for model in self.definition.inputs:
            if model.mutates:
                found[model.name] = self.content.tensors[model.name].clone()
                written = self.definition.written(model, self.content.scope)
                found[model.name][slice(None) if written is None else written] = outputs[model.name]
            elif model.is_flag:
                found[model.name] = self._rows(model, self.content.tensors[model.name], pieces)
                for i, piece in enumerate(pieces):  # an empty piece leaves no state, so the flag stays
                    found[model.name][i] |= piece.stop > piece.start
            elif roles.is_state(self.definition, model):
                left = next((output for output in self.definition.outputs if output.shape == model.shape), None)
                if left is not None:
                    found[model.name] = outputs[left.name].clone()
        return found

    def take(self, pieces: Sequence[Piece], replaced: Mapping[str, Tensor] = MappingProxyType({})) -> Content:
        """The content of a call on these pieces, in this order. Tensors in `replaced` are used unchanged."""
        lengths = [piece.stop - piece.start for piece in pieces]
        counted = roles.starts(self.definition, lengths, self.given)
        tensors = {}
        for model in self.definition.inputs:
            if model.name in counted:
                like = self.content.tensors[model.name]
                tensors[model.name] = torch.tensor(counted[model.name], dtype=like.dtype, device=like.device)
            elif model.name in replaced:
                tensors[model.name] = replaced[model.name]
            elif model.name in self.content.tensors:
                tensors[model.name] = self._rows(model, self.content.tensors[model.name], pieces)
        sizes = roles.sizes(self.definition, lengths, self.given)
        drafts = roles.axis(self.definition, "drafts")
        if drafts is not None:  # rows are never cut, so each keeps its tokens
            sizes[drafts] = int(self.content.scope[drafts])
        scope = {**self.content.scope, **sizes, **integers(tensors)}
        return Content(tensors, self.content.scalars, scope)

    def padded(self, content: Content) -> Content:
        """The content with the rows behind the last sequence that the whole call has."""
        first, tokens = roles.behind(self.definition, self.content.scope), roles.axis(self.definition, "tokens")
        if first is None or tokens is None:
            return content
        tensors = dict(content.tensors)
        for model in self.definition.inputs:
            if model.name in tensors and (model.shape or [""])[0] == tokens:
                tensors[model.name] = torch.cat([tensors[model.name], self.content.tensors[model.name][first:]])
        return Content(tensors, content.scalars, {**content.scope, tokens: self.content.scope[tokens]})

    def put(self, whole: Mapping[str, Tensor], part: Mapping[str, Tensor], pieces: Sequence[Piece]) -> None:
        """Copies the outputs of a call on pieces to their places in the outputs of the whole call. Sums over all
        sequences are replaced: they are those of the whole call only if the pieces are."""
        for model in self.definition.outputs:
            if model.name in self.sums:
                whole[model.name].copy_(part[model.name])
                continue
            index = self._index(model, pieces, whole[model.name].device)
            whole[model.name][index] = part[model.name][: len(index)]  # not what lies behind the last sequence
        for model in self.definition.inputs:
            if model.mutates:
                whole[model.name][self._written(model, pieces)] = part[model.name]

    def get(self, whole: Mapping[str, Tensor], pieces: Sequence[Piece]) -> dict[str, Tensor]:
        """The inverse of `put`: the part of the whole call's outputs that belongs to these pieces. Sums over all
        sequences belong to none, and are left out."""
        found = {}
        for model in self.definition.outputs:
            if model.name in self.sums:
                continue
            found[model.name] = whole[model.name][self._index(model, pieces, whole[model.name].device)]
        for model in self.definition.inputs:
            if model.mutates:
                found[model.name] = whole[model.name][self._written(model, pieces)]
        return found

    def _written(self, model: TensorModel, pieces: Sequence[Piece]) -> list[int]:
        """The rows of a mutated input's written part that a call on these pieces writes."""
        everywhere = self.definition.written(model, self.content.scope)
        mine = self.definition.written(model, self.take(pieces).scope)
        if everywhere is None or mine is None:
            return [piece.sequence for piece in pieces]
        place = {slot: i for i, slot in enumerate(everywhere)}
        return [place[slot] for slot in mine]

    def _rows(self, model: TensorModel, x: Tensor, pieces: Sequence[Piece]) -> Tensor:
        per_row = bool(model.shape) and (model.shape or [])[0] in self.per_row
        return x[self._index(model, pieces, x.device)] if per_row else x

    def _index(self, model: TensorModel, pieces: Sequence[Piece], device: torch.device) -> Tensor:
        rows: list[int] = []
        axis, tokens = str((model.shape or [""])[0]), roles.axis(self.definition, "tokens")
        for piece in pieces:
            if axis == tokens:
                first = self.bounds[piece.sequence]
                rows += range(first + piece.start, first + piece.stop)
            elif axis in self.pieces:
                text = self.pieces[axis]
                first = self.content.scope[self.starts_of[axis]][piece.sequence]
                begin, end = (roles.count(text, at, self.given) for at in (piece.start, piece.stop))
                rows += range(first + begin, first + end)
            else:
                rows.append(piece.sequence)
        return torch.tensor(rows, dtype=torch.int64, device=device)
