"""The kill matrix, from a selftest's results or its Markdown: which workload rejects which known-bad solution."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gdnspec.catalog.definitions import Found, without_family
from gdnspec.catalog.faults import rejections
from gdnspec.catalog.workloads import workloads
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.fault import Rejection
from gdnspec.model.loading import read_text
from gdnspec.model.result import CheckResult
from gdnspec.report.figures import plain
from gdnspec.report.rows import largest

# The matrix is between these lines of a Markdown file.
MATRIX_BEGIN = "<!-- kill matrix: begin (gdnspec selftest --markdown writes it) -->"
MATRIX_END = "<!-- kill matrix: end -->"


@dataclass(frozen=True)
class Cell:
    """The result of one workload. `state`: killed, passed, or none if it did not run. `said`: the result in words."""

    state: str
    said: str


@dataclass(frozen=True)
class Fault:
    """A known-bad solution and its cells, one per workload."""

    name: str
    kind: str
    text: str
    kills: int
    ran: int
    cells: list[Cell]


@dataclass(frozen=True)
class Grid:
    """The workloads of one operator and its known-bad solutions. `definition`: the one whose section links go to."""

    family: str
    definition: str
    workloads: list[str]
    kills: list[int]  # of each workload
    faults: list[Fault]


@dataclass(frozen=True)
class Written:
    """A table of a Markdown file."""

    columns: list[str]
    rows: list[list[str]]


def grids(results: Iterable[CheckResult], found: dict[str, Found]) -> list[Grid]:
    """One grid per operator. Definitions that differ only in the layout of the state share one."""
    bad = rejections()
    met: dict[str, dict[str, dict[str, CheckResult]]] = {}
    owners: dict[str, str] = {}
    for result in results:
        if result.solution not in bad or result.definition not in found:
            continue
        family = _family(found[result.definition].definition)
        owners.setdefault(family, result.definition)
        mine = met.setdefault(family, {}).setdefault(result.solution, {})
        # If there are several results, for two layouts or from two files, a failure counts.
        if result.workload not in mine or not mine[result.workload].failed:
            mine[result.workload] = result
    return [_grid(family, owners[family], by_name, bad, found[owners[family]]) for family, by_name in met.items()]


def _grid(
    family: str, owner: str, met: dict[str, dict[str, CheckResult]], bad: dict[str, Rejection], at: Found
) -> Grid:
    ran = {name for mine in met.values() for name in mine}
    names = [line.name for line in workloads(at) if line.name in ran]
    names += sorted(ran - set(names))
    faults = []
    for solution, mine in sorted(met.items(), key=lambda item: (bad[item[0]].kind != "wrong", item[0])):
        cells = [_cell(mine.get(name)) for name in names]
        kills = sum(cell.state == "killed" for cell in cells)
        tried = sum(cell.state != "none" for cell in cells)
        faults.append(Fault(solution, bad[solution].kind, bad[solution].fault, kills, tried, cells))
    counts = [sum(fault.cells[i].state == "killed" for fault in faults) for i in range(len(names))]
    return Grid(family, owner, names, counts, faults)


def _cell(result: CheckResult | None) -> Cell:
    if result is None or result.status == "UNSUPPORTED":
        return Cell("none", "")
    if not result.failed:
        return Cell("passed", "")
    over, where = largest(result.outputs)
    figure = f", {over:.3g} x budget ({where})" if over is not None and math.isfinite(over) else ""
    return Cell("killed", f"{result.status}{figure}")


def _family(definition: Definition) -> str:
    """The operator's name without family and layout: both layouts have the same workloads."""
    return without_family(definition.name).replace(f"_{definition.conventions.state_layout}", "")


def written(file: Path) -> list[Written]:
    """The tables in a file that `gdnspec selftest --markdown` wrote. Raises `SpecError`."""
    text = read_text(file)
    if MATRIX_BEGIN not in text:
        raise SpecError([Problem(file, "holds no kill matrix", hint="gdnspec selftest --markdown FILE writes one")])
    between = text.partition(MATRIX_BEGIN)[2].partition(MATRIX_END)[0]
    tables: list[Written] = []
    lines: list[list[str]] = []
    for line in [*between.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([plain(cell.strip().replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif lines:
            if len(lines) > 2:
                tables.append(Written(lines[0], [row for row in lines[2:] if len(row) == len(lines[0])]))
            lines = []
    return tables
