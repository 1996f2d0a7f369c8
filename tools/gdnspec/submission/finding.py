"""A finding of the audit, and a helper for lists of names."""

from typing import NamedTuple

from gdnspec.model.errors import visible


def words(text: str) -> frozenset[str]:
    """The set of the words in a text, so that lists of names stay readable in the source."""
    return frozenset(text.split())


class Finding(NamedTuple):
    """One finding. `severe`: no kernel needs this, so intake refuses the bundle by default."""

    file: str
    line: int
    kind: str
    what: str
    severe: bool

    def __str__(self) -> str:
        return visible(f"{self.file}:{self.line}: {self.kind}: {self.what}")
