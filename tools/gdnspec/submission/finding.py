"""One thing that an audit has found, and how its lists of names are written."""

from typing import NamedTuple

from gdnspec.model.errors import visible


def words(text: str) -> frozenset[str]:
    """A set of them, as one reads them best."""
    return frozenset(text.split())


class Finding(NamedTuple):
    """`severe`: no kernel needs it, and intake refuses it unless it is told not to."""

    file: str
    line: int
    kind: str
    what: str
    severe: bool

    def __str__(self) -> str:
        return visible(f"{self.file}:{self.line}: {self.kind}: {self.what}")
