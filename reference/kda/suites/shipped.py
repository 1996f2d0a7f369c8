"""What the family ships: the lines of each definition, and what they cover. A `gdnspec.family.Suites`."""

import zlib
from collections.abc import Callable, Iterator, Sequence

from gdnspec.family import Published, SuiteError, Workload

from .far import FAR
from .layer import LAYERS
from .rows import ROWS, Line
from .stages import STAGES

EVERY = ROWS | LAYERS | STAGES


def lines(published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
    """A seed comes from the row's name: a new row changes no other."""
    name = published.definition.name
    if name not in EVERY:
        raise SuiteError("no rows: name it in ROWS of suites/rows.py")
    for suite, rows in EVERY[name].items():
        yield from (_line(suite, row) for row in rows())
    for rows in FAR.get(name, ()):
        yield from (_line("conformance", row) for row in rows())


def _line(suite: str, row: Line) -> Workload:
    seed = zlib.crc32(f"{suite}/{row['name']}".encode())
    return Workload.model_validate({"suite": suite, **row, "seed": seed})


def table(published: Sequence[Published]) -> str:
    """Lines of each suite, and the regimes of each definition."""
    rows = ["| definition | smoke | conformance | regimes |", "|---|---|---|---|"]
    for one in published:
        counts = [sum(line.suite == suite for line in one.lines) for suite in ("smoke", "conformance")]
        regimes = len({line.regime for line in one.lines})
        rows.append(f"| {one.definition.name} | {' | '.join(map(str, counts))} | {regimes} |")
    return "\n".join(rows)
