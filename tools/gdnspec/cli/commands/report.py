"""gdnspec report: write one page with all traces and verdicts."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from gdnspec import paths
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.writing import require_file
from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.files import replaced
from gdnspec.cli.needs import needs
from gdnspec.cli.options import Definitions, DefinitionsDir, SolutionsDir
from gdnspec.model.errors import Problem, SpecError, nearest


def report(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="PAGE.html, or README.md.")],
    names: Definitions = None,
    verdict_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--verdicts", metavar="FILE", help="Results of gdnspec check --json, best with --errors; repeatable."
        ),
    ] = None,
    selftest_file: Annotated[
        Path | None,
        typer.Option(
            "--selftest",
            metavar="FILE",
            help="The kill matrix: the file of gdnspec selftest --json, or the .md of gdnspec selftest --markdown.",
        ),
    ] = None,
    solutions_dir: SolutionsDir = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="SOLUTION",
            help="Write verdicts and times of this solution into a README.md instead, between two marks.",
        ),
    ] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Write one self-contained HTML page: the fastest kernels, all traces, verdicts by regime, and the kill matrix.

    Exit code 3 if there is neither a trace nor a verdict; the page then says so.
    """
    if markdown is not None:
        _write_markdown(markdown, output, names, verdict_files or [], solutions_dir)
        return
    needs("report", "altair", "jinja2", "vl_convert")
    if output.suffix not in (".html", ".htm"):
        raise SpecError([Problem(output, "is not named .html", hint="-o PAGE.html")])
    require_file(output, "-o FILE")

    from gdnspec.report import kills
    from gdnspec.report.page import Contents, render
    from gdnspec.report.sources import traces, verdicts

    problems: list[str] = []

    def note(message: str) -> None:
        problems.append(message)
        warn(message)

    found = {name: definition(name) for name in names} if names else definitions()
    known, unusable = solutions(solutions_dir)
    for problem in unusable:
        note(f"{problem}; its traces are left out")
    judged = [result for result in verdicts(verdict_files or (), note) if result.definition in found]
    as_tables = selftest_file is not None and selftest_file.suffix == ".md"
    matrix = kills.written(selftest_file) if selftest_file and as_tables else []
    tested = verdicts([selftest_file], note) if selftest_file and not as_tables else None
    measured = traces(known.values(), known.values(), found, note)
    contents = Contents(
        found, measured, judged, tested, shlex.join(["gdnspec", *sys.argv[1:]]),
        [paths.shown(file) for file in (*(verdict_files or ()), *([selftest_file] if selftest_file else ()))], problems,
        matrix, frozenset(name for name, solution in known.items() if solution.is_peer),
    )  # fmt: skip
    size = _write(output, render(contents))
    if contents.empty:
        complain(f"gdnspec: no trace and no verdict: {output} says so; next: gdnspec bench --save")
        raise typer.Exit(3)
    say(f"{output}: {len(contents.measured)} traces, {len(judged)} verdicts, {size / 1e6:.1f} MB")


def _write_markdown(
    name: str, file: Path, names: list[str] | None, verdict_files: list[Path], solutions_dir: Path | None
) -> None:
    from gdnspec.report.markdown import placed, section
    from gdnspec.report.sources import traces, verdicts

    if file.suffix != ".md":
        raise SpecError([Problem(file, "is not named .md", hint="-o README.md")])
    require_file(file, "-o FILE")
    found = {item: definition(item) for item in names} if names else definitions()
    known, _ = solutions(solutions_dir)
    if name not in known:
        raise SpecError(f"no solution {name!r} ({nearest(name, known)})")
    judged = [result for result in verdicts(verdict_files, warn) if result.definition in found]
    measured = traces([known[name]], known.values(), found, warn)
    body = section(name, found, judged, measured, shlex.join(["gdnspec", *sys.argv[1:]]))
    if not body:
        complain(f"gdnspec: no trace and no verdict of {name}; next: gdnspec check --solution {name} --json FILE")
        raise typer.Exit(3)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    _write(file, placed(text, body, name))
    say(f"{file}: verdicts and times of {name}")


def _write(file: Path, text: str) -> int:
    """Writes the page in one step and returns its size in bytes. Raises `SpecError`."""
    content = text.encode("utf-8", errors="replace")
    try:
        replaced(file, content)
    except OSError as error:
        raise SpecError([Problem(file, f"cannot be written: {error.strerror}")]) from None
    return len(content)
