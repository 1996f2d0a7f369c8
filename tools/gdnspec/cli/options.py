"""Options that several commands share, each with one meaning and one help text."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog import families
from gdnspec.cli import amounts
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import SUITES


def _add(folders: list[Path] | None) -> list[Path] | None:
    for folder in folders or ():
        families.add(folder)
    return folders


def _completed(known: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    """The names that a shell offers. It offers none where the files cannot be read."""
    try:
        return [name for name in known() if name.startswith(incomplete)]
    except SpecError:
        return []


def _definitions(incomplete: str) -> list[str]:
    from gdnspec.catalog.definitions import definitions

    return _completed(definitions, incomplete)


def _solutions(incomplete: str) -> list[str]:
    from gdnspec.catalog.solutions import solutions

    return _completed(lambda: solutions()[0], incomplete)


Definitions = Annotated[
    list[str] | None,
    typer.Argument(metavar="DEFINITION", help="Definitions; all if you name none.", autocompletion=_definitions),
]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DEFINITION|KERNEL]..",
        help="Definitions, and kernels: FOLDER, FILE.py, MODULE:FUNCTION.",
        autocompletion=_definitions,
    ),
]
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
Solutions = Annotated[
    list[str] | None,
    typer.Option("--solution", help="Only this solution, or NAME:VARIANT; repeatable.", autocompletion=_solutions),
]
SolutionsDir = Annotated[Path | None, typer.Option(help="Also look for solutions here.")]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        "--suite", help=f"{', '.join(SUITES)} or all; repeatable.", show_default="smoke, or all with --workload"
    ),
]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Only this workload of any suite; repeatable.")]
WorkloadsFile = Annotated[
    Path | None,
    typer.Option("--workloads", metavar="FILE", help="Take one definition's workloads from this file."),
]
DeviceName = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
CallTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=amounts.SECONDS, help="Seconds that one call may take.")
]
Trusted = Annotated[bool, typer.Option("--trusted", help="Run the code even where Linux cannot isolate it fully.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ForceFile = Annotated[bool, typer.Option(help="Overwrite the file.")]
ForceFiles = Annotated[bool, typer.Option(help="Overwrite files.")]
