"""gdnspec vectors: check an implementation in any language, by files of inputs and outputs."""

import contextlib
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.families import same_families
from gdnspec.catalog.workloads import workloads
from gdnspec.cli import offered
from gdnspec.cli.console import add_row, complain, number_of, print_table, say, table, warn
from gdnspec.cli.needs import needs
from gdnspec.cli.options import DefinitionsDir, Suites, Workloads, WorkloadsFile
from gdnspec.cli.progress import progress, writer
from gdnspec.cli.selection import select
from gdnspec.cli.verdicts import Summary, largest_error, verdict
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import SUITES

if TYPE_CHECKING:
    from gdnspec.vectors.read_back import Folder

EPILOG = (
    "Exit codes: 0 done, all passed; 1 something failed; 2 the request or a file is invalid, and nothing was judged; "
    "3 a package is missing; 130 interrupted."
)

ONNX = "onnx-backend"
FORMATS = ("gdnspec", ONNX)

app = typer.Typer(
    help="Test vectors for any language: write the inputs as files, and judge the outputs that you compute.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def vectors() -> None:
    """Test vectors for any language: write the inputs as files, and judge the outputs that you compute."""


@app.command(epilog=EPILOG)
def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="DEFINITION", help="The definition to export workloads of.", autocompletion=offered.definitions
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make.")],
    suite: Suites = None,
    workload: Workloads = None,
    workloads_file: WorkloadsFile = None,
    format_: Annotated[str, typer.Option("--format", help=f"{' or '.join(FORMATS)}.")] = "gdnspec",
    force: Annotated[bool, typer.Option(help="Replace an earlier export.")] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Write inputs, shapes, types and budgets as safetensors and JSON. The files contain no expected values.

    The format onnx-backend writes backend tests of ONNX instead: models of one operator, with inputs and expected
    outputs, in DIR/DEFINITION/test_WORKLOAD.
    """
    if format_ not in FORMATS:
        raise SpecError(f"no format {format_!r} ({nearest(format_, FORMATS)})")
    ((found, chosen),) = select([name], suite, workload, workloads_file)
    lines = [line for line in chosen if line.judged is None]
    for line in chosen:
        if line.judged is not None:
            complain(f"{line.name}: left out, because only gdnspec check can judge a sample of it")
    if not lines:
        raise SpecError("the chosen workloads are judged on samples, which only gdnspec check can do: choose others")
    if format_ == ONNX:
        needs("onnx", "onnx")
        from gdnspec.vectors import onnx_backend

        count = onnx_backend.export(found, lines, out, force, complain)
        complain(f"{count} backend tests of {name} in {out / name}")
        return
    from gdnspec.vectors.export import export as write

    size = write(found, lines, out, force)
    complain(
        f"{number_of(len(lines), 'workload')} of {name} in {out}, {size / 2**20:.1f} MiB; "
        f"{out / 'README.md'} explains them; "
        f"then: {shlex.join(['gdnspec', 'vectors', 'judge', str(out), 'OUTPUTS', *same_families()])}"
    )


@app.command(epilog=EPILOG)
def judge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `gdnspec vectors export` wrote.")],
    outputs: Annotated[
        Path, typer.Argument(metavar="OUTPUTS", help="Your folder with one <workload>.safetensors per workload.")
    ],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Append each result as a line of JSON; - is stdout."),
    ] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Judge outputs by the rules of `gdnspec check`. All files are inspected before the first verdict."""
    from gdnspec.vectors import outputs as files
    from gdnspec.vectors import read_back as folders

    read = folders.read(folder)
    files.require_whole(outputs, read)

    from gdnspec.vectors.judge_files import DEVICE, Judge

    summary = Summary(DEVICE)
    to_stdout = str(json_file) == "-"
    with contextlib.ExitStack() as stack:
        write = writer(stack, json_file, to_stdout)
        advance = stack.enter_context(progress(len(read.workloads), 0))
        for result in Judge(read, outputs, warn).run():
            write(result)
            summary.add(result)
            advance(result)
    summary.print_repeated()
    if not to_stdout:
        _print(summary, read)
    raise typer.Exit(summary.exit_code())


def _print(summary: Summary, folder: "Folder") -> None:
    rows = table("", "definition", "outputs", "verdict", "passed", "failed", "largest error / budget")
    for (name, outputs), results in summary.rows.items():
        said = verdict(results)
        failed = sum(result.failed for result in results)
        passed = f"{len(results) - failed} of {len(results)}"
        add_row(
            rows,
            name,
            outputs,
            said,
            passed,
            str(failed or ""),
            largest_error(results),
            styles={2: "green" if said == "PASSED" else "red"},
        )
    print_table(rows)
    _print_notes([result for results in summary.rows.values() for result in results], folder)


def _print_notes(results: list[CheckResult], folder: "Folder") -> None:
    """Prints how much of each suite was judged, because a manifest may hold any part of it."""
    all_of = Counter(line.suite for line in workloads(folder.found))
    judged = Counter(result.suite for result in results if result.workload not in folder.own)
    if judged:
        say("judged: " + ", ".join(f"{suite} {judged[suite]} of {all_of[suite]}" for suite in SUITES if judged[suite]))
    if folder.own:
        say(f"not shipped with gdnspec, judged by the lines in the manifest: {', '.join(folder.own)}")
