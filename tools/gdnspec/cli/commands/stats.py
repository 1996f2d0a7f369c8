"""gdnspec workloads stats: statistics of a file of workloads."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import load_workloads
from gdnspec.catalog.writing import require_file
from gdnspec.cli import offered
from gdnspec.cli.console import add_row, complain, print_table, say, table
from gdnspec.cli.files import whole
from gdnspec.cli.needs import needs
from gdnspec.cli.options import DefinitionsDir
from gdnspec.model.errors import Problem, SpecError, nearest

if TYPE_CHECKING:
    from gdnspec.report.loads import Bars, Picture
    from gdnspec.traffic.summary import Distribution, Summary

BAR = 40  # characters of the longest bar


def stats(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Workload files, or folders of *.jsonl files.")],
    definition_: Annotated[
        str | None,
        typer.Option(
            "--definition",
            help="The definition that the workloads belong to.",
            autocompletion=offered.definitions,
            show_default="the name of the file or its folder",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Take bandwidth and matrix rate of this device.")] = "nvidia-h200",
    multiprocessors: Annotated[
        int | None, typer.Option(min=1, help="Multiprocessors of the device.", show_default="as the device has")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also draw a picture: .html, or .svg for one file."),
    ] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Show statistics of workloads: lengths, batches, chunks, how they fill a GPU, and what limits their speed.

    A workload counts as often as its weight says.
    """
    from gdnspec.traffic.cost import ceilings_of
    from gdnspec.traffic.summary import MULTIPROCESSORS, summarise

    absent = [Problem(path, "no such file or folder") for path in files if not path.exists()]
    if absent:
        raise SpecError(absent)
    count = multiprocessors or MULTIPROCESSORS.get(device)
    if count is None:
        raise SpecError(f"the number of multiprocessors of {device!r} is unknown: set it with --multiprocessors")
    ceilings = ceilings_of(solutions()[0].values(), device)
    chosen = [file for path in files for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not chosen:
        raise SpecError(f"no *.jsonl in {', '.join(map(str, files))}")
    if output is not None:
        needs("report", "altair", "vl_convert")
        if output.suffix not in (".html", ".svg") or (output.suffix == ".svg" and len(chosen) > 1):
            raise SpecError([Problem(output, "is not named .html, or .svg for one file", hint="-o PICTURE.html")])
        require_file(output, "-o FILE")
    pictures = []
    for file in chosen:
        found = _owner(file, definition_)
        lines = load_workloads(file, found)
        summary = summarise(found, lines, ceilings, count)
        _show(file, found, summary, device)
        pictures.append((f"{found.definition.name}: {file.name}", summary))
    if output is not None:
        _draw([_picture(title, summary, device) for title, summary in pictures], output)
        complain(f"a picture of this in {output}")


def _owner(file: Path, name: str | None) -> Found:
    if name is not None:
        return definition(name)
    for candidate in (file.stem, file.resolve().parent.name):
        if candidate in definitions():
            return definition(candidate)
    hint = nearest(file.stem, definitions())
    raise SpecError([Problem(file, "is not named after a definition: name it with --definition", hint=hint)])


# --- terminal ---------------------------------------------------------------------------------------------------


def _show(file: Path, found: Found, summary: "Summary", device: str) -> None:
    say(f"{found.definition.name}, {file}: " + ", ".join(" ".join(fact) for fact in _facts(summary, device)))
    rows = table("", "", "least", "10%", "median", "90%", "most", "mean")
    for each in summary.distributions:
        add_row(rows, each.name, *(_figure(x) for x in (each.least, *each.quantiles, each.most, each.mean)))
    print_table(rows)
    for each in summary.distributions[:3]:
        _bars_of(each)
    rows = table("", "decided by", "calls", "time", "")
    for share in summary.shares:
        add_row(rows, share.kind, f"{share.calls:.1%}", f"{share.time:.1%}", "#" * round(BAR * share.time))
    print_table(rows)
    say()


def _bars_of(each: "Distribution") -> None:
    bars = _bars(each)
    rows = table("", each.name, "share", "")
    largest = max(bars.shares)
    for label, share in zip(bars.labels, bars.shares, strict=True):
        add_row(rows, label, f"{share:.1%}", "#" * round(BAR * share / largest))
    print_table(rows)


def _facts(summary: "Summary", device: str) -> list[tuple[str, str]]:
    return [
        (f"{summary.calls}", "calls"),
        (f"{summary.workloads}", "workloads"),
        (f"{summary.bound:.4g} s", f"at the bound of {device}"),
        (f"{summary.expected:.4g} s", "with chains and launches"),
    ]


def _figure(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 or x == int(x) else f"{x:.3g}"


# --- picture ----------------------------------------------------------------------------------------------------


def _bars(each: "Distribution") -> "Bars":
    from gdnspec.report.loads import Bars

    lows = sorted(each.bins)
    total = sum(each.bins.values())
    return Bars(each.name, [_bin(low) for low in lows], [each.bins[low] / total for low in lows])


def _bin(low: float) -> str:
    """The label of the bin [low, 2 low): 0, 1, 2-3, 4-7, or 0.25-0.5."""
    if low < 1:
        return f"{low:g}-{2 * low:g}" if low else "0"
    return f"{low:,.0f}" if low == 1 else f"{low:,.0f}-{2 * low - 1:,.0f}"


def _picture(title: str, summary: "Summary", device: str) -> "Picture":
    from gdnspec.report.loads import Picture

    facts = [(what, figure) for figure, what in _facts(summary, device)]
    kinds = [(share.kind, share.calls, share.time) for share in summary.shares]
    return Picture(title, facts, [_bars(each) for each in summary.distributions], kinds)


def _draw(pictures: "list[Picture]", output: Path) -> None:
    from gdnspec.report.loads import page, svg

    command = shlex.join(["gdnspec", *sys.argv[1:]])
    try:
        with whole(output) as file:
            file.write(svg(pictures[0]) if output.suffix == ".svg" else page(pictures, command))
    except OSError as error:
        raise SpecError([Problem(output, f"cannot be written: {error.strerror or error}")]) from None
