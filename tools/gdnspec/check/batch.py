"""A batch taken apart and put together: any pieces of its sequences as a call of their own."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from gdnspec.check.call import Content
from gdnspec.model import chunks
from gdnspec.model.checkpoints import COUNT, INTERVAL, STARTS, starts
from gdnspec.model.definition import Definition
from gdnspec.model.definition import Tensor as TensorModel
from gdnspec.model.sequences import bounds
from gdnspec.numerics.pools import integers

PER_ROW = (["total_seq_len"], ["num_seqs"], ["batch_size"], [chunks.COUNT])  # first dimensions that pieces divide


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a sequence."""

    sequence: int
    start: int
    stop: int


class Batch:
    """The sequences of one call; of a definition of one token a sequence, its rows."""

    def __init__(self, definition: Definition, content: Content) -> None:
        self.definition, self.content = definition, content
        self.ragged = definition.conventions.packing == "ragged"
        self.bounded_by = bounds(definition)
        self.bounds: list[int] = content.tensors[self.bounded_by].tolist() if self.bounded_by is not None else []
        self.count = len(self.bounds) - 1 if self.ragged else int(content.scope["batch_size"])
        self.chunked = chunks.counts_chunks(definition)
        # Tokens from one checkpoint of a sequence to the next; None where none are kept.
        self.interval = int(content.scope[INTERVAL]) if INTERVAL in content.scalars else None

    def whole(self, sequence: int) -> Piece:
        length = self.bounds[sequence + 1] - self.bounds[sequence] if self.ragged else 1
        return Piece(sequence, 0, length)

    def cuts(self, sequence: int) -> range:
        """Where a sequence may be cut in two: anywhere, or, where it has checkpoints, at one, from which those of what
        follows are counted; of what is cut in chunks, between two."""
        length = self.whole(sequence).stop
        if self.definition.stage == "chunk_stage":
            return range(0, length + 1, chunks.SIZE)
        step = self.interval if self.interval is not None and self.interval <= length else 1
        return range(0, length + 1, step)

    def carried(self, pieces: Sequence[Piece], outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a call on the rest of sequences finds once one on `pieces`, their beginnings, has left `outputs`: states
        of its own, or pools with what was written, and flags that say so."""
        found: dict[str, Tensor] = {}
        for model in self.definition.inputs:
            if model.mutates:
                found[model.name] = self.content.tensors[model.name].clone()
                written = self.definition.written(model, self.content.scope)
                found[model.name][slice(None) if written is None else written] = outputs[model.name]
            elif model.is_flag:
                found[model.name] = self._rows(model, self.content.tensors[model.name], pieces)
                for i, piece in enumerate(pieces):  # no token, no state: what there was is what there is
                    found[model.name][i] |= piece.stop > piece.start
            elif model.is_state:
                left = next((output for output in self.definition.outputs if output.shape == model.shape), None)
                if left is not None:
                    found[model.name] = outputs[left.name].clone()
        return found

    def take(self, pieces: Sequence[Piece], replaced: Mapping[str, Tensor] = MappingProxyType({})) -> Content:
        """A call on these pieces in this order; what is `replaced` is taken as it is."""
        lengths = [piece.stop - piece.start for piece in pieces]
        counted = {self.bounded_by: [0, *accumulate(lengths)]} if self.bounded_by is not None else {}
        if self.interval is not None:
            counted[STARTS] = starts(lengths, self.interval)
        if self.chunked:
            counted[chunks.STARTS] = chunks.starts(lengths)
        tensors = {}
        for model in self.definition.inputs:
            if model.name in counted:
                like = self.content.tensors[model.name]
                tensors[model.name] = torch.tensor(counted[model.name], dtype=like.dtype, device=like.device)
            elif model.name in replaced:
                tensors[model.name] = replaced[model.name]
            elif model.name in self.content.tensors:
                tensors[model.name] = self._rows(model, self.content.tensors[model.name], pieces)
        sizes = {"total_seq_len": sum(lengths), "num_seqs": len(pieces)} if self.ragged else {"batch_size": len(pieces)}
        if self.interval is not None:
            sizes[COUNT] = counted[STARTS][-1]
        if self.chunked:
            sizes[chunks.COUNT] = counted[chunks.STARTS][-1]
        scope = {**self.content.scope, **sizes, **integers(tensors)}
        return Content(tensors, self.content.scalars, scope)

    def put(self, whole: Mapping[str, Tensor], part: Mapping[str, Tensor], pieces: Sequence[Piece]) -> None:
        """Writes the outputs of a call on pieces to where they belong in those of all."""
        for model in self.definition.outputs:
            whole[model.name][self._index(model, pieces, whole[model.name].device)] = part[model.name]
        for model in self.definition.inputs:
            if model.mutates:
                whole[model.name][self._written(model, pieces)] = part[model.name]

    def get(self, whole: Mapping[str, Tensor], pieces: Sequence[Piece]) -> dict[str, Tensor]:
        """What `put` would write: of the outputs of all, those of a call on pieces."""
        found = {}
        for model in self.definition.outputs:
            found[model.name] = whole[model.name][self._index(model, pieces, whole[model.name].device)]
        for model in self.definition.inputs:
            if model.mutates:
                found[model.name] = whole[model.name][self._written(model, pieces)]
        return found

    def _written(self, model: TensorModel, pieces: Sequence[Piece]) -> list[int]:
        """Where what a call on pieces writes of a mutated input stands in what all of them write."""
        everywhere = self.definition.written(model, self.content.scope)
        mine = self.definition.written(model, self.take(pieces).scope)
        if everywhere is None or mine is None:
            return [piece.sequence for piece in pieces]
        place = {slot: i for i, slot in enumerate(everywhere)}
        return [place[slot] for slot in mine]

    def _rows(self, model: TensorModel, x: Tensor, pieces: Sequence[Piece]) -> Tensor:
        per_row = model.shape is not None and model.shape[:1] in PER_ROW
        return x[self._index(model, pieces, x.device)] if per_row else x

    def _index(self, model: TensorModel, pieces: Sequence[Piece], device: torch.device) -> Tensor:
        rows: list[int] = []
        for piece in pieces:
            if (model.shape or [])[0] == "total_seq_len":
                first = self.bounds[piece.sequence]
                rows += range(first + piece.start, first + piece.stop)
            elif (model.shape or [])[0] == COUNT and self.interval is not None:
                # A piece starts where a checkpoint is, or has none.
                first = self.content.scope[STARTS][piece.sequence]
                rows += range(first + piece.start // self.interval, first + piece.stop // self.interval)
            elif (model.shape or [])[0] == chunks.COUNT:
                first = self.content.scope[chunks.STARTS][piece.sequence]
                rows += range(first + piece.start // chunks.SIZE, first - (-piece.stop // chunks.SIZE))
            else:
                rows.append(piece.sequence)
        return torch.tensor(rows, dtype=torch.int64, device=device)
