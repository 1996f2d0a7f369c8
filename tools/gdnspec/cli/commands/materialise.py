"""gdnspec workloads materialize: the tensors of workloads as safetensors files."""

from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.workloads import load_workloads
from gdnspec.cli import offered
from gdnspec.cli.console import complain, say
from gdnspec.cli.options import DefinitionsDir, ForceFiles, Workloads
from gdnspec.cli.selection import lines_of
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.workload import SUITES, Workload


def materialize(
    name: Annotated[
        str,
        typer.Argument(
            metavar="DEFINITION",
            help="The definition that the workloads belong to.",
            autocompletion=offered.definitions,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Write DIR/<workload>.safetensors.")],
    workloads_file: Annotated[
        Path | None, typer.Option("--workloads", help="Take workloads from this file instead of the shipped ones.")
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SUITES)}; all if you name none; repeatable.")
    ] = None,
    workload: Workloads = None,
    force: ForceFiles = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Write the inputs of workloads to safetensors files, for use in any language.

    One tensor at a time is drawn and written, so memory must hold only the largest one and the keys. Scalars are in the
    workload's line. No expected values are written: to have your outputs judged, use gdnspec
    vectors export and vectors judge.
    """
    found = definition(name)
    file = workloads_file or found.workloads_file
    found = found.at(file)
    chosen = lines_of(file, load_workloads(file, found), suite, workload)
    if not chosen:
        raise SpecError([Problem(file, "has no such workload", hint="gdnspec list workloads")])
    if output.exists() and not output.is_dir():
        raise SpecError([Problem(output, "is a file", hint="name a folder: it gets one file per workload")])
    files = {line.name: output / f"{line.name}.safetensors" for line in chosen}
    for path in files.values():
        if path.exists() and not force:
            raise SpecError([Problem(path, "exists already", hint="--force overwrites it")])
    output.mkdir(parents=True, exist_ok=True)
    total = sum(_one(found, line, files[line.name]) for line in chosen)
    say(f"{len(chosen)} workloads, {total / 2**20:.1f} MiB in {output}")


def _one(found: Found, line: Workload, path: Path) -> int:
    from gdnspec.inputs.materialise import InvalidWorkload
    from gdnspec.inputs.stream import write

    try:
        size, _ = write(found, line, path)
    except (InvalidWorkload, MemoryError) as error:
        raise SpecError(f"workload {line.name!r}: {error}") from None
    except OSError as error:
        raise SpecError([Problem(path, f"cannot be written: {error.strerror or error}")]) from None
    complain(f"{line.name}: {size / 2**20:.1f} MiB")
    return size
