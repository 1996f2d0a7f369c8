"""Where words go: results to stdout, progress and complaints to stderr."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Of the help of every command that has no codes of its own.
EPILOG = (
    "Exit codes: 0 all passed; 1 something failed; 2 the request or a file is invalid; 3 nothing could run here; "
    "130 interrupted. Progress goes to stderr, results to stdout."
)


# rich is loaded when something is drawn with it: it takes as long as to read a hundred workloads.
@cache
def out() -> "Console":
    """The console of results."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def err() -> "Console":
    """The console of progress and complaints."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


_MOVES = dict.fromkeys(map(ord, "\a\b\v\f\r"))  # what makes a terminal sound, or write over what it shows


def say(text: str = "") -> None:
    """Plain text to stdout: brackets are brackets, long lines stay whole."""
    print(text.translate(_MOVES), flush=True)


def complain(text: str, style: str | None = None) -> None:
    """Plain text to stderr."""
    err().print(text, markup=False, soft_wrap=True, style=style)


def warn(message: str) -> None:
    complain(f"gdnspec: warning: {message}")


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def table(title: str, *columns: str) -> "Table":
    """A plain table: readable in a terminal, in a log and in a README."""
    from rich.table import Table

    result = Table(title=title or None, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        result.add_column(column, overflow="fold")
    return result


def add_row(rows: "Table", *cells: object, styles: dict[int, str] | None = None) -> None:
    """A row of plain text; `styles` colours single cells."""
    from rich.markup import escape

    texts = [escape(str(cell)) for cell in cells]
    for column, style in (styles or {}).items():
        texts[column] = f"[{style}]{texts[column]}[/]"
    rows.add_row(*texts)


def print_table(rows: "Table") -> None:
    from rich.console import Console

    # A pipe has no width of its own: 80 columns would cut names in two.
    wide = out() if out().is_terminal else Console(highlight=False, width=160)
    wide.print(rows)
