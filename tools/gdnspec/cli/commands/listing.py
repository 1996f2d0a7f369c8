"""gdnspec list: list definitions, solutions, workloads, presets or regimes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gdnspec.catalog import badges
from gdnspec.catalog.definitions import applies, definitions, presets
from gdnspec.catalog.families import families
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import workloads
from gdnspec.cli.console import add_row, print_json, print_table, table, warn
from gdnspec.cli.options import AsJson, DefinitionsDir, SolutionsDir
from gdnspec.cli.reading import keep_all


class What(StrEnum):
    definitions = "definitions"
    solutions = "solutions"
    workloads = "workloads"
    presets = "presets"
    regimes = "regimes"


def list_(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.definitions,
    solutions_dir: SolutionsDir = None,
    as_json: AsJson = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """List definitions, solutions, workloads, presets or regimes."""
    keep_all()
    title, columns, rows = _ROWS[what](solutions_dir)
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    result = table(title, *columns)
    for row in rows:
        add_row(result, *row)
    print_table(result)


Listing = tuple[str, list[str], list[list[Any]]]


def _definitions(_: Path | None) -> Listing:
    rows = []
    for found in definitions().values():
        d = found.definition
        c = d.conventions
        rows.append([d.name, d.stage, c.state_layout, c.decay_gate, c.qk_norm, len(workloads(found))])
    return "", ["definition", "stage", "state_layout", "decay_gate", "qk_norm", "workloads"], rows


def _solutions(extra: Path | None) -> Listing:
    found, problems = solutions(extra)
    for problem in problems:
        warn(str(problem))
    rows = [
        [s.name, s.manifest.language, s.manifest.requires.device, badges.summary(badges.found(s)),
         ", ".join(s.manifest.entries)]
        for s in found.values()
    ]  # fmt: skip
    return "", ["solution", "language", "device", "invariance", "definitions"], rows


def _workloads(_: Path | None) -> Listing:
    rows = []
    for found in definitions().values():
        for w in workloads(found):
            axes = " ".join(f"{name}={size}" for name, size in w.axes.items())
            rows.append([found.definition.name, w.name, w.suite, w.preset, w.regime or "tensors", axes])
    return "", ["definition", "workload", "suite", "preset", "regime", "axes"], rows


def _presets(_: Path | None) -> Listing:
    rows = []
    for name, preset in presets().items():
        serves = [n for n, found in definitions().items() if applies(preset, found.definition)]
        axes = " ".join(f"{axis}={size}" for axis, size in preset.axes.items())
        rows.append([name, axes, len(serves), preset.source.split(":")[0]])
    return "", ["preset", "axes", "definitions", "source"], rows


def _regimes(_: Path | None) -> Listing:
    rows = [[family.name, *item] for family in families().values() for item in family.about.regimes.items()]
    return "", ["family", "regime", "inputs"], rows


_ROWS = {
    What.definitions: _definitions, What.solutions: _solutions, What.workloads: _workloads, What.presets: _presets,
    What.regimes: _regimes,
}  # fmt: skip
