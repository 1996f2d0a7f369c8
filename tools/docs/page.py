"""A page of the site that stands in no file of docs/, and the Markdown that pages are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """`place` is its path on the site. `source`: the file of the repository that it shows, if it shows one. `base`: the
    file that its relative links start from, if that is another."""

    place: str
    text: str
    source: str = ""
    base: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, with an empty line behind it."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(_cell(str(value)) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n\n"


def _cell(text: str) -> str:
    """On one line. A bar outside of code would end the cell."""
    parts = text.replace("\n", " ").split("`")
    return "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(parts))


def unbroken(text: str) -> str:
    """Kept on one line by a browser, a date too."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "-\N{WORD JOINER}")


def code(text: object) -> str:
    """`text` as code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""


def shape(sizes: Sequence[object] | None) -> str:
    return "scalar" if sizes is None else f"`[{', '.join(map(str, sizes))}]`"
