"""Values of scalars that every definition must get which has them."""

from collections.abc import Iterable, Iterator

from gdnspec.family import FLOATS, Published, Workload

from ..line import Line
from .build import Call, Heads, drafted, line, ragged

VALUES = {"zero": 0.0, "negative": -1.5, "one": 1.0, "tiny": 1e-6, "huge": 1e6}
KINDS = ("absent", *VALUES)
TINY, HUGE = 1e-5, 1e5  # at most, at least
# Why a scalar does not take a value of a kind.
REFUSED = {("eps", "negative"): "the root of a negative sum is no number"}
SUITES = ("smoke", "conformance")


def required(published: Published) -> dict[str, tuple[str, ...]]:
    """The kinds of values of each floating-point scalar."""
    return {
        tensor.name: tuple(kind for kind in KINDS if (tensor.name, kind) not in REFUSED)
        for tensor in published.definition.inputs
        if tensor.is_scalar and tensor.optional and tensor.dtype in FLOATS
    }


def kinds_of(value: float | None) -> set[str]:
    """The kinds that a value is of; one may be negative and tiny."""
    if value is None:
        return {"absent"}
    size = abs(value)
    held = {
        "zero": value == 0, "negative": value < 0, "one": value == 1, "tiny": 0 < size <= TINY, "huge": size >= HUGE,
    }  # fmt: skip
    return {kind for kind, yes in held.items() if yes}


def missing(published: Published, rows: Iterable[Workload]) -> list[tuple[str, str]]:
    """(scalar, kind of value) that no row has."""
    have = [row for row in rows if row.suite in SUITES and row.device == "any"]
    return [
        (name, kind)
        for name, kinds in required(published).items()
        for kind in kinds
        if not any(kind in kinds_of(row.scalars.get(name)) for row in have)
    ]


def rows_for(published: Published, rows: list[Workload]) -> Iterator[Line]:
    """A small row for each value that none has."""
    for name, kind in missing(published, rows):
        scalars = {} if kind == "absent" else {name: VALUES[kind]}
        lengths = (20, 1, 0, 5) if ragged(published.definition) else (1,) * 5
        call = Call(
            f"scalar_{name}_{kind}", Heads(1, 1, 2, 64), lengths, scalars=scalars,
            drafts=3 if drafted(published.definition) else 1, covers=f"{name} {kind}",
        )  # fmt: skip
        yield line(published, call)
