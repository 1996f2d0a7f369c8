"""gdnspec list: list definitions, solutions, workloads, sessions, presets, regimes or faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gdnspec.catalog import badges
from gdnspec.catalog.definitions import applies, definitions
from gdnspec.catalog.families import families
from gdnspec.catalog.faults import rejections_by_family
from gdnspec.catalog.session_faults import read_table, tables
from gdnspec.catalog.sessions import sessions, with_sessions
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import workloads
from gdnspec.cli import offered
from gdnspec.cli.console import add_row, print_json, print_table, table, warn
from gdnspec.cli.matching import matching
from gdnspec.cli.options import AsJson, DefinitionsDir, SolutionsDir
from gdnspec.cli.reading import keep_all
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.fault import Fault, short


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"What to list: {', '.join(offered.LISTS)}.",
            autocompletion=offered.lists,
        ),
    ] = offered.LISTS[0],
    words: Annotated[
        str | None,
        typer.Option("-k", metavar="EXPR", help="Only rows that contain these words: and, or, not."),
    ] = None,
    solutions_dir: SolutionsDir = None,
    as_json: AsJson = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """List definitions, solutions, workloads, sessions, presets, regimes or faults."""
    if what not in _ROWS:
        raise SpecError(f"no list of {what!r} ({nearest(what, _ROWS)})")
    holds = matching(words) if words is not None else None
    keep_all()
    columns, rows = _ROWS[what](solutions_dir)
    if holds is not None:
        rows = [row for row in rows if holds(" ".join(map(str, row)))]
        if not rows:
            raise SpecError(f"no row has the words -k {words!r}: gdnspec list {what} shows all")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    result = table("", *columns)
    for row in rows:
        add_row(result, *row)
    print_table(result)


Listing = tuple[list[str], list[list[Any]]]  # the names of the columns, and the rows


def _definitions(_: Path | None) -> Listing:
    rows = []
    for found in definitions().values():
        d = found.definition
        c = d.conventions
        rows.append([d.name, d.stage, c.state_layout, c.decay_gate, c.qk_norm, len(workloads(found))])
    return ["definition", "stage", "state_layout", "decay_gate", "qk_norm", "workloads"], rows


def _solutions(extra: Path | None) -> Listing:
    found, problems = solutions(extra)
    for problem in problems:
        warn(str(problem))
    rows = [
        [s.name, s.manifest.language, s.manifest.requires.device, badges.summary(badges.found(s)),
         ", ".join(s.manifest.entries)]
        for s in found.values()
    ]  # fmt: skip
    return ["solution", "language", "device", "invariance", "definitions"], rows


def _workloads(_: Path | None) -> Listing:
    rows = []
    for found in definitions().values():
        for w in workloads(found):
            axes = " ".join(f"{name}={size}" for name, size in w.axes.items())
            rows.append([found.definition.name, w.name, w.suite, w.preset, w.regime or "tensors", axes])
    return ["definition", "workload", "suite", "preset", "regime", "axes"], rows


def _sessions(_: Path | None) -> Listing:
    rows = [
        [family.name, line.name, line.suite, line.preset, line.regime, len(line.steps), line.covers]
        for family in with_sessions().values()
        for line in sessions(family)
    ]
    return ["family", "session", "suite", "preset", "regime", "steps", "covers"], rows


def _presets(_: Path | None) -> Listing:
    rows = []
    for family in families().values():
        own = [found.definition for found in definitions().values() if found.family.name == family.name]
        for name, preset in family.presets.items():
            serves = sum(applies(preset, definition) for definition in own)
            axes = " ".join(f"{axis}={size}" for axis, size in preset.axes.items())
            rows.append([family.name, name, axes, serves, preset.source.split(":")[0]])
    return ["family", "preset", "axes", "definitions", "source"], rows


def _regimes(_: Path | None) -> Listing:
    rows = [[family.name, *item] for family in families().values() for item in family.about.regimes.items()]
    return ["family", "regime", "inputs"], rows


def _faults(_: Path | None) -> Listing:
    """What `gdnspec selftest` must reject, and then what its sessions must."""
    rows = [
        [name, family, "selftest", known.fault, _reports(known.reports if isinstance(known, Fault) else [])]
        for name, family, known in rejections_by_family()
    ]
    rows.sort(key=lambda row: (row[1], row[0]))
    for file in tables():
        rows += [
            [fault.name, file.parent.name, "selftest --sessions", fault.fault, _reports(fault.reports)]
            for fault in read_table(file)
        ]
    return ["name", "family", "tried by", "fault", "reports"], rows


def _reports(addresses: list[str]) -> str:
    return ", ".join(map(short, addresses))


_ROWS: dict[str, Callable[[Path | None], Listing]] = dict(
    zip(offered.LISTS, (_definitions, _solutions, _workloads, _sessions, _presets, _regimes, _faults), strict=True)
)
