"""What the family ships: the lines of each definition, and what they cover. A `gdnspec.family.Suites`."""

import zlib
from collections.abc import Callable, Iterator, Sequence

from gdnspec.family import Published, Workload

from .by_definition import KINDS, suites
from .covering import table as covered
from .covering.rows import covering
from .line import Line
from .strides import strided


def lines(published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
    """Rows by hand, then those that follow from the definition. A seed comes from the row's name: a new row changes no
    other."""
    name = published.definition.name
    by_hand = [{"suite": suite, **row} for suite, rows in KINDS[name].items() for row in rows()]
    every = [*suites(name).items(), *strided(published.definition).items()]
    for suite, row in ((suite, row) for suite, rows in every for row in rows()):
        yield _line(suite, row)
    for row in covering(published, by_hand, share):
        yield _line("conformance", row)


def _line(suite: str, row: Line) -> Workload:
    drawn = {} if {"tensors", "seed"} & row.keys() else {"seed": zlib.crc32(f"{suite}/{row['name']}".encode())}
    device = {"device": "cuda"} if suite == "performance" else {}
    return Workload.model_validate({"suite": suite, **row, **drawn, **device})


def table(published: Sequence[Published]) -> str:
    return covered.markdown(published)
