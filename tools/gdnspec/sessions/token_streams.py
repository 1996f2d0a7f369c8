"""Draws the tokens of a session: a stream for each request, and the weights that all share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.build.reference import judged, running
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.families import Family
from gdnspec.inputs import validity
from gdnspec.inputs.array import Array
from gdnspec.inputs.materialise import InvalidWorkload, digest
from gdnspec.inputs.random import Stream
from gdnspec.inputs.session_contract import SessionWords, Source
from gdnspec.inputs.slots import slots
from gdnspec.model import roles
from gdnspec.model.errors import PlacedError, Problem, RegimeError, SpecError
from gdnspec.model.ledger import walk
from gdnspec.model.preset import Preset
from gdnspec.model.session_line import SessionLine
from gdnspec.model.workload import Workload
from gdnspec.numerics.torch_arrays import to_torch

Ref = tuple[str, int]  # a token: the request whose stream it is of, and its place there


def words(family: Family) -> SessionWords:
    """How the definitions of a family serve sessions. Raises `SpecError` if its code does not say."""
    make = getattr(judged(family), "sessions", None)
    if make is None:
        hint = "FAMILY = gdnspec.family.Family(.., sessions=..)"
        file = family.reference / "family.py"
        raise SpecError([Problem(file, f"the family {family.name} does not say how sessions are served", hint=hint)])
    with running(family, "loading what serves sessions"):
        found: SessionWords = make()
    return found


def preset_of(family: Family, line: SessionLine) -> Preset:
    """The preset of a session that was checked already."""
    preset = family.preset(line.preset)
    assert preset is not None, line.preset
    return preset


@dataclass(frozen=True, eq=False)
class Tokens:
    """`streams`: the tensors of each request, [tokens, ..] by name. `weights`: those of all."""

    streams: Mapping[str, Mapping[str, Tensor]]
    weights: Mapping[str, Tensor]
    sha256: str

    def rows(self, refs: Sequence[Ref | None]) -> dict[str, Tensor]:
        """The tensors of these tokens, in this order; zeros for None."""
        names = next(iter(self.streams.values()))
        return {name: self._column(name, refs) for name in names}

    def _column(self, name: str, refs: Sequence[Ref | None]) -> Tensor:
        like = next(iter(self.streams.values()))[name]
        if not refs:
            return like[:0]
        empty = torch.zeros_like(like[0])
        return torch.stack([empty if ref is None else self.streams[ref[0]][name][ref[1]] for ref in refs])


def draw(family: Family, line: SessionLine) -> Tokens:
    """The tokens of a session. The same line gives the same tokens on every machine. Raises `InvalidWorkload` with the
    reason if they cannot be used."""
    used = {name: count for name, count in walk(line).used.items() if count}
    arrays: dict[str, dict[str, Array]] = {name: {} for name in used}
    weights: dict[str, Array] = {}
    try:
        for source in words(family).sources(line.convolution):
            found = definition(source.definition)
            for i, (name, count) in enumerate(used.items()):
                painted = _painted(found, source, line, count, (line.seed + i) % (1 << 62), preset_of(family, line))
                arrays[name] |= {tensor: painted[tensor] for tensor in source.tokens}
                if i == 0:
                    weights |= {tensor: painted[tensor] for tensor in source.weights}
    except (RegimeError, PlacedError) as error:
        raise InvalidWorkload(str(error)) from None
    named = {f"{name}/{tensor}": array for name, of in arrays.items() for tensor, array in of.items()}
    sha256 = digest({**weights, **named})
    if line.sha256 is not None and line.sha256 != sha256:
        advice = "after a change, gdnspec workloads freeze --sessions --workloads FILE"
        raise InvalidWorkload(
            f"the tokens have sha256 {sha256[:12]}.., but the line says {line.sha256[:12]}.. ({advice})"
        )
    streams = {name: {tensor: to_torch(array) for tensor, array in of.items()} for name, of in arrays.items()}
    return Tokens(streams, {name: to_torch(array) for name, array in weights.items()}, sha256)


def _painted(
    found: Found, source: Source, line: SessionLine, count: int, seed: int, preset: Preset
) -> dict[str, Array]:
    """The inputs that a source names, for one sequence or row of `count` tokens."""
    model = found.definition
    scalars = dict(source.scalars)
    more, integers = slots(model, 1, count, Stream(seed, "slots"))
    ragged = model.conventions.packing == "ragged"
    workload = Workload(
        name="tokens", suite="conformance", preset=line.preset, regime=line.regime, seed=seed, scalars=scalars,
        axes=roles.sizes(model, [count], scalars) | more, integers=integers,
        sequence_lengths=[count] if ragged else None,
    )  # fmt: skip
    scope = workload.scope(model, preset)
    painted = {}
    with running(found.family, f"drawing tokens with {model.name}"):
        painter = judged(found.family).painter(model, workload, scope)
        for name in (*source.tokens, *source.weights):
            tensor = model.input(name)
            array: Array = painter.paint(tensor)
            for problem in validity.values(found, tensor, array, workload):
                raise InvalidWorkload(problem)
            by_row = name in source.tokens and (tensor.shape or [""])[0] == roles.axis(model, "rows")
            painted[name] = Array(array.dtype, array.data[0]) if by_row else array
    return painted
