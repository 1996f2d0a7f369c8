"""Where words go: results to stdout, progress and complaints to stderr."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

# Of the help of every command that has no codes of its own.
EPILOG = (
    "Exit codes: 0 all passed; 1 something failed; 2 the request or a file is invalid; 3 nothing could run here; "
    "130 interrupted. Progress goes to stderr, results to stdout."
)


def say(text: str = "") -> None:
    """Plain text to stdout: brackets are brackets, long lines stay whole."""
    out.print(text, markup=False, soft_wrap=True)


def complain(text: str, style: str | None = None) -> None:
    """Plain text to stderr."""
    err.print(text, markup=False, soft_wrap=True, style=style)


def warn(message: str) -> None:
    complain(f"gdnspec: warning: {message}")


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def table(title: str, *columns: str) -> Table:
    """A plain table: readable in a terminal, in a log and in a README."""
    result = Table(title=title or None, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        result.add_column(column, overflow="fold")
    return result


def add_row(rows: Table, *cells: object, styles: dict[int, str] | None = None) -> None:
    """A row of plain text; `styles` colours single cells."""
    texts = [escape(str(cell)) for cell in cells]
    for column, style in (styles or {}).items():
        texts[column] = f"[{style}]{texts[column]}[/]"
    rows.add_row(*texts)


def print_table(rows: Table) -> None:
    # A pipe has no width of its own: 80 columns would cut names in two.
    wide = out if out.is_terminal else Console(highlight=False, width=160)
    wide.print(rows)
