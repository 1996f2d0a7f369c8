"""gdnspec workloads freeze: compute the error budget of each workload."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.workloads import load_workloads, refuse_sessions
from gdnspec.catalog.writing import require_file
from gdnspec.cli import session_files
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.device import chosen_device, require_device
from gdnspec.cli.files import whole
from gdnspec.cli.options import Definitions, DefinitionsDir, DeviceName, Workloads
from gdnspec.cli.selection import lines_of
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import SUITES, Workload


def freeze(
    names: Definitions = None,
    workloads_file: Annotated[
        Path | None,
        typer.Option(
            "--workloads", help="Freeze this file of one definition, or of sessions, instead of the shipped ones."
        ),
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(SUITES)}; all if you name none; repeatable.")
    ] = None,
    workload: Workloads = None,
    missing: Annotated[bool, typer.Option(help="Only lines without a budget or without a limit of the bias.")] = False,
    check: Annotated[
        bool, typer.Option(help="Write nothing; exit code 1 if a figure has moved by more than a tenth.")
    ] = False,
    device: DeviceName = "auto",
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Freeze the sessions of a file: give it with --workloads.")
    ] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Run the honest emulators on each workload, and write twice their largest errors into its line as its budget.

    On a machine without a CUDA GPU, workloads that need one are not changed. Sessions are frozen on the CPU.
    """
    if sessions:
        session_files.refuse({"--suite": suite, "--check": check, "--device": None if device == "auto" else device})
        if workloads_file is None:
            raise SpecError("--sessions freezes a file of yours: add --workloads FILE")
        require_file(workloads_file, "--workloads FILE")
        if names and len(names) > 1:
            raise SpecError(f"--workloads holds sessions of one family, not of {' and '.join(names)}")
        family = session_files.family_named(names[0] if names else None)
        session_files.freeze(family, workloads_file, workload, missing)
        raise typer.Exit(0)
    found = [definition(name) for name in names] if names else list(definitions().values())
    if workloads_file is not None and len(found) != 1:
        refuse_sessions(workloads_file)
        raise SpecError(
            "--workloads holds workloads of one definition: gdnspec workloads freeze DEFINITION --workloads FILE"
        )
    require_device(device)
    files = []
    for item in found:
        file = workloads_file or item.workloads_file
        if not check:
            require_file(file, "--check writes nothing")
        lines = load_workloads(file, item.at(file))
        files.append((file, item.at(file), lines, lines_of(file, lines, suite, workload)))
    where = chosen_device(device)

    from gdnspec.numerics.expected import Expected
    from gdnspec.numerics.freeze import drifts, figures, frozen, lacks_bias, with_bias

    expected = Expected(where.kind, warn)
    moved = done = 0
    for file, item, lines, chosen in files:
        if missing:
            chosen = [line for line in chosen if not line.budget or lacks_bias(item, line)]
        for line in chosen:
            if line.device == "cuda" and where.kind != "cuda":
                complain(f"{item.definition.name} {line.name}: not changed, because it needs a CUDA GPU")
                continue
            if line.judged is not None:
                complain(f"{item.definition.name} {line.name}: not changed, because each check measures its sample")
                continue
            if check:
                for drift in drifts(item, line, figures(item, line, expected)):
                    complain(f"{item.definition.name} {line.name}: {drift}")
                    moved += 1
            else:
                new = (with_bias if missing and line.budget else frozen)(item, line, expected)
                lines[lines.index(line)] = new
                complain(f"{item.definition.name} {line.name}: {_shown(new)}")
            done += 1
        if not check:
            _write(file, lines)
    say(f"{done} workloads {'recomputed' if check else 'frozen'}" + (f", {moved} figures moved" if check else ""))
    raise typer.Exit(1 if moved else 0)


def _shown(line: Workload) -> str:
    return ", ".join(
        f"{output} " + " ".join(f"{metric} {limit:.3g}" for metric, limit in limits.items())
        for output, limits in (line.budget or {}).items()
    )


def _write(file: Path, lines: list[Workload]) -> None:
    text = "".join(json.dumps(line.model_dump(mode="json", exclude_defaults=True)) + "\n" for line in lines)
    if file.read_text(encoding="utf-8") != text:
        with whole(file) as target:
            target.write(text)
