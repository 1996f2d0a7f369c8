"""gdnspec new: make the folder of a new solution."""

import json
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gdnspec import paths
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.families import same_families
from gdnspec.catalog.solutions import MANIFEST, load_solution, solutions
from gdnspec.cli import offered
from gdnspec.cli.console import say
from gdnspec.cli.options import DefinitionsDir
from gdnspec.cli.scaffold import SCAFFOLDS
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.solution import PLACEHOLDER_AUTHOR, PLACEHOLDER_TEXT, Manifest


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The solution's name: lower case, digits, underscores.")],
    definition_names: Annotated[
        list[str],
        typer.Option(
            "--definition", help="A definition that it serves; repeatable.", autocompletion=offered.definitions
        ),
    ],
    language: Annotated[
        str,
        typer.Option(help=f"The language of the kernel: {', '.join(SCAFFOLDS)}.", autocompletion=offered.languages),
    ] = "python",
    solutions_dir: Annotated[Path | None, typer.Option(help="Make its folder here; default: solutions/.")] = None,
    author: Annotated[str, typer.Option(help="Name to credit.")] = PLACEHOLDER_AUTHOR,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Scaffold a solution: a manifest, and a kernel file with every argument and its shape."""
    if language not in SCAFFOLDS:
        raise SpecError(f"no language {language!r} ({nearest(language, SCAFFOLDS)})")
    root = solutions_dir or paths.solutions_dir()
    if solutions_dir is None and "site-packages" in root.parts:
        raise SpecError("this gdnspec is installed and has no folder of solutions: name one with --solutions-dir DIR")
    found = [definition(item).definition for item in dict.fromkeys(definition_names)]
    scaffold = SCAFFOLDS[language]
    manifest = {
        "schema_version": 1,
        "name": name,
        "language": language,
        "authors": [author],
        "license": "Apache-2.0",
        "description": f"{', '.join(d.name for d in found)} in {language}: {PLACEHOLDER_TEXT}",
        "sources": [scaffold.file],
        "requires": scaffold.requires,
        "deterministic": False,  # true also promises the same bits in every call, which few kernels keep
        "entries": {
            d.name: {"entry": f"{scaffold.file}::{d.name}", "call": scaffold.call, "prepare": None, "supports": []}
            for d in found
        },
    }
    folder = root / name
    _refuse(name, folder, manifest)
    files = {MANIFEST: json.dumps(manifest, indent=2) + "\n", scaffold.file: scaffold.text(name, found)}
    try:
        _make(folder, files)
    except OSError as error:
        shown = error.strerror or str(error)
        raise SpecError([Problem(folder, f"cannot be written: {shown}; nothing was created")]) from None
    where = ("--solutions-dir", str(root)) if solutions_dir is not None else ()
    check = shlex.join(["gdnspec", "check", "--solution", name, *where, *same_families()])
    say(f"made {paths.shown(folder)}/: {MANIFEST}, {scaffold.file}")
    say(f"edit {paths.shown(folder / scaffold.file)}, then: {check}")


def _make(folder: Path, files: dict[str, str]) -> None:
    """Makes the folder completely or not at all. Raises `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as stage:
        made = Path(stage) / folder.name
        made.mkdir()
        for file, text in files.items():
            (made / file).write_text(text, encoding="utf-8")
        load_solution(made)
        made.rename(folder)


def _refuse(name: str, folder: Path, manifest: dict[str, object]) -> None:
    from pydantic import ValidationError

    try:
        Manifest.model_validate(manifest)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("name",):
            raise SpecError(
                f"{name!r}: a name has lower-case letters, digits and underscores, and starts with a letter"
            ) from None
        raise SpecError(f"{name!r}: {error.errors()[0]['msg']}") from None
    if folder.exists():
        raise SpecError([Problem(folder, "exists already", hint="choose another name")])
    if name in solutions()[0]:
        raise SpecError(f"the name {name!r} is taken, see gdnspec list solutions: choose another name")
