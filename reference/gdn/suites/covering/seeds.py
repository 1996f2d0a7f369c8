"""A seed for a generated row: the first on which honest arithmetic stays well within what a budget may be."""

import zlib
from collections.abc import Callable

from gdnspec.family import Published, SuiteError, Workload

from ..line import Line

SUITE = "conformance"
ROOM = 0.8  # of the limit of a budget, at most
TRIES = 8
MEASURED = {"sha256", "budget", "emulators"}  # keys of a line


def plain(line: Workload) -> Line:
    """A line of a file as a row: without its suite, and without what was measured on it."""
    return line.model_dump(mode="json", exclude_defaults=True, exclude=MEASURED | {"suite"})


class Seeds:
    """The seeds of a definition's rows. `rows`: those that its file holds, by name."""

    def __init__(self, published: Published, share: Callable[[Workload], float | None]) -> None:
        self.share = share
        self.rows = {line.name: plain(line) for line in published.lines}

    def seeded(self, row: Line) -> Line:
        """The row with the seed that it has in the file; a new one with a seed that was tried.

        Raises `SuiteError` where no seed will do.
        """
        before = self.rows.get(row["name"])
        if before is not None and before | {"seed": 0} == plain(_line(row, 0)):
            return row | {"seed": before["seed"]}
        for attempt in range(TRIES):
            seed = zlib.crc32(f"{SUITE}/{row['name']}{f'/{attempt}' if attempt else ''}".encode())
            share = self.share(_line(row, seed))
            if share is not None and share <= ROOM:
                return row | {"seed": seed}
        raise SuiteError(f"{row['name']}: honest arithmetic nearly takes the limit of a budget")

    def seeded_or_none(self, row: Line) -> Line | None:
        try:
            return self.seeded(row)
        except SuiteError:
            return None


def _line(row: Line, seed: int) -> Workload:
    return Workload.model_validate(row | {"suite": SUITE, "seed": seed})
