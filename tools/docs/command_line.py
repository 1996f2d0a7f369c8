"""The command line as the program itself describes it."""

from collections.abc import Iterator
from typing import Any

import typer
from gdnspec.cli.console import EPILOG
from gdnspec.cli.main import app

from docs.page import Page, code, table


def pages() -> list[Page]:
    command: Any = typer.main.get_command(app)
    words = (
        "This page is made from the program. `gdnspec COMMAND --help` shows the same on a terminal.\n\n"
        f"{EPILOG}\n\n[Statuses and exit codes](statuses.md) explains both.\n\n"
    )
    return [Page("reference/command-line.md", f"# Command line\n\n{words}{''.join(_described(command, 'gdnspec'))}")]


def _described(group: Any, name: str) -> Iterator[str]:
    """Every command of a group, with those of groups below it."""
    for word in group.commands:
        command = group.commands[word]
        full = f"{name} {word}"
        yield f"## {full}\n\n{_paragraphs(command.help)}\n\n"
        if hasattr(command, "commands"):
            yield from _described(command, full)
            continue
        context: Any = command.context_class(command, info_name=full)
        yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n\n"
        records = [parameter.get_help_record(context) for parameter in command.params]
        yield table(["argument or option", "meaning"], [(code(name), words) for name, words in filter(None, records)])
        if command.epilog != EPILOG:
            yield f"{command.epilog}\n\n"


def _paragraphs(text: str) -> str:
    """Without the line breaks of a docstring."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n"))
