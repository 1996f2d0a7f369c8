"""Options that several commands share, each with one meaning and one help text."""

from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog import families
from gdnspec.cli import amounts, offered
from gdnspec.model.workload import SUITES


def _add(folders: list[Path] | None) -> list[Path] | None:
    for folder in folders or ():
        families.add(folder)
    return folders


Definitions = Annotated[
    list[str] | None,
    typer.Argument(metavar="DEFINITION", help="Definitions; all if you name none.", autocompletion=offered.definitions),
]
Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DEFINITION|KERNEL",
        help="Definitions, and kernels: FOLDER, FILE.py, MODULE:FUNCTION.",
        autocompletion=offered.definitions,
    ),
]
StatesName = Annotated[
    str | None, typer.Option(help="States of the pool of a session: float32 or bfloat16.", show_default="float32")
]
Convolution = Annotated[
    bool, typer.Option("--convolution", help="Sessions whose tokens pass the convolution before the rule.")
]
Pooled = Annotated[
    bool, typer.Option("--pooled", help="Sessions whose prefills and drafts work on the slots of the pool.")
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
    typer.Option(
        "--solution", help="Only this solution, or NAME:VARIANT; repeatable.", autocompletion=offered.solutions
    ),
]
SolutionsDir = Annotated[Path | None, typer.Option(help="Also look for solutions here.")]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        help=f"{', '.join(SUITES)} or all; repeatable.",
        show_default="smoke, or all with --workload",
        autocompletion=offered.suites,
    ),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", help="Only this workload of any suite; repeatable.", autocompletion=offered.workloads),
]
WorkloadsFile = Annotated[
    Path | None,
    typer.Option("--workloads", metavar="FILE", help="Take one definition's workloads from this file."),
]
DeviceName = Annotated[str, typer.Option(help="auto, cpu or cuda.", autocompletion=offered.devices)]
CallTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=amounts.SECONDS, help="Seconds that one call may take.")
]
Trusted = Annotated[bool, typer.Option("--trusted", help="Run the code even where Linux cannot isolate it fully.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ForceFile = Annotated[bool, typer.Option(help="Overwrite the file.")]
ForceFiles = Annotated[bool, typer.Option(help="Overwrite files.")]
