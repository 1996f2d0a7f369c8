"""Output: results go to stdout, progress and error messages to stderr."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Shown in the help of every command that does not define its own exit codes.
EPILOG = (
    "Exit codes: 0 all passed; 1 something failed; 2 the request or a file is invalid; 3 nothing could run here, or a "
    "package is missing; 130 interrupted. Progress goes to stderr, results to stdout."
)


# rich is imported only when it is needed: the import takes as long as reading a hundred workloads.
@cache
def out() -> "Console":
    """The console for results."""
    from rich.console import Console

    return Console(highlight=False)


@cache
def err() -> "Console":
    """The console for progress and error messages."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


_MOVES = dict.fromkeys(map(ord, "\a\b\v\f\r"))  # these ring the bell, or overwrite what a terminal shows


def say(text: str = "") -> None:
    """Prints plain text on stdout, without rich markup and without wrapping lines."""
    print(text.translate(_MOVES), flush=True)


def number_of(count: int, what: str) -> str:
    """`1 workload`, `2 workloads`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def complain(text: str, style: str | None = None) -> None:
    """Prints plain text on stderr."""
    err().print(text, markup=False, soft_wrap=True, style=style)


def warn(message: str) -> None:
    complain(f"gdnspec: warning: {message}")


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def table(title: str, *columns: str) -> "Table":
    """An empty table that is readable in a terminal, in a log and in a README."""
    from rich.table import Table

    result = Table(title=title or None, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for column in columns:
        result.add_column(column, overflow="fold")
    return result


def add_row(rows: "Table", *cells: object, styles: dict[int, str] | None = None) -> None:
    """Adds a row of plain text. `styles` gives colours to cells, by column."""
    from rich.markup import escape

    texts = [escape(str(cell)) for cell in cells]
    for column, style in (styles or {}).items():
        texts[column] = f"[{style}]{texts[column]}[/]"
    rows.add_row(*texts)


def print_table(rows: "Table") -> None:
    from rich.console import Console

    # A pipe has no width, and rich's default of 80 columns would break names.
    wide = out() if out().is_terminal else Console(highlight=False, width=160)
    wide.print(rows)
