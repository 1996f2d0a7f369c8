"""The option that adds families from outside."""

from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog import families


def _add(folders: list[Path] | None) -> list[Path] | None:
    for folder in folders or ():
        families.add(folder)
    return folders


DefinitionsDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--definitions-dir",
        metavar="DIR",
        callback=_add,
        is_eager=True,
        help="Also look for families of operators here, and for their code in reference/ beside it. "
        "The judge runs that code: name only what you trust.",
    ),
]
