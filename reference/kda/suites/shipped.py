"""What the family ships: the lines of each definition, and what they cover. A `gdnspec.family.Suites`."""

import zlib
from collections.abc import Callable, Iterator, Sequence

from gdnspec.family import Published, SuiteError, Workload

from .by_definition import OWN, suites
from .rows import Line

SUITES = ("smoke", "conformance", "strict", "performance")


def lines(published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
    """A seed comes from the row's name: a new row changes no other."""
    name = published.definition.name
    if name not in OWN:
        raise SuiteError("no rows: name it in ROWS of suites/rows.py")
    for suite, rows in suites(name):
        yield from (_line(suite, row) for row in rows())


def _line(suite: str, row: Line) -> Workload:
    drawn = {} if {"tensors", "seed"} & row.keys() else {"seed": zlib.crc32(f"{suite}/{row['name']}".encode())}
    device = {"device": "cuda"} if suite == "performance" else {}
    return Workload.model_validate({"suite": suite, **row, **drawn, **device})


def table(published: Sequence[Published]) -> str:
    """Lines of each suite, and the regimes of each definition."""
    rows = [f"| definition | {' | '.join(SUITES)} | regimes |", f"|{'---|' * (len(SUITES) + 2)}"]
    for one in published:
        counts = [sum(line.suite == suite for line in one.lines) for suite in SUITES]
        regimes = len({line.regime for line in one.lines} - {None})
        rows.append(f"| {one.definition.name} | {' | '.join(map(str, counts))} | {regimes} |")
    return "\n".join(rows)
