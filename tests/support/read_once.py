"""What nearly every command reads or makes anew, and what is the same in all of them as long as tests run: the
checkout's definitions, the lines of its workloads, its solutions and its tables of faults, in each process once, and
the script of the report's charts, once in all."""

import fcntl
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog import definitions, faults, solutions, workloads
from gdnspec.catalog.definitions import Found
from gdnspec.model.workload import Workload

SHARED = "GDNSPEC_TESTS_SHARED"  # in the environment: a folder of all processes of this test run

CHECKOUT = Path(__file__).parents[2]

_definitions: dict[Path, Found] = {}
_load_definition = definitions.load_definition


def definitions_of_the_checkout() -> None:
    """From now on those that are shipped are read once, also where a command has families from elsewhere as well."""
    definitions.load_definition = _definition


def _definition(file: Path) -> Found:
    if not file.is_relative_to(CHECKOUT / "definitions"):
        return _load_definition(file)
    if file not in _definitions:
        _definitions[file] = _load_definition(file)
    return _definitions[file]


_read: dict[Path, tuple[Found, list[Workload]]] = {}
_load = workloads.load_workloads


def workloads_of_the_checkout() -> None:
    """From now on `workloads` gives, of a definition as it is shipped, what it gave before."""
    workloads.load_workloads = _loaded


def _loaded(file: Path, found: Found) -> list[Workload]:
    if file != found.workloads_file or not file.is_relative_to(CHECKOUT):
        return _load(file, found)
    if file not in _read or _read[file][0] is not found:
        _read[file] = found, _load(file, found)
    return [*_read[file][1]]


_solutions: dict[Path, tuple[dict[str, Found], solutions.Solution]] = {}
_load_solution = solutions.load_solution


def solutions_of_the_checkout() -> None:
    """From now on `solutions` gives, of each folder of the checkout, what it gave before, where what was known of
    definitions is known still."""
    solutions.load_solution = _solution


def _solution(folder: Path) -> solutions.Solution:
    if folder.parent not in (CHECKOUT / "solutions", CHECKOUT / "peers"):
        return _load_solution(folder)
    known = definitions.definitions()
    if folder not in _solutions or not _solutions[folder][0].items() <= known.items():
        _solutions[folder] = known, _load_solution(folder)
    return _solutions[folder][1]


_read_table = faults.read_table
_tables: dict[Path, list[faults.Made]] = {}


def faults_of_the_checkout() -> None:
    """From now on the rows of the tables that are shipped, whose bases are read with them, are those from before."""
    faults.read_table = _table


def _table(table: Path) -> list[faults.Made]:
    if not table.is_relative_to(CHECKOUT) or paths.solutions_dir() != CHECKOUT / "solutions":
        return _read_table(table)
    if table not in _tables:
        _tables[table] = _read_table(table)
    return [*_tables[table]]


def script_of_charts() -> None:
    """From now on the script is bundled by the first process that draws charts: a second of a JavaScript engine."""
    from gdnspec.report import charts

    charts.bundle = cache(lambda bundled=charts.bundle: once("charts.js", bundled))


def once(name: str, make: Callable[[], str]) -> str:
    """What the first process to ask has made; the others wait for it."""
    folder = os.environ.get(SHARED)
    if folder is None:
        return make()
    file = Path(folder) / name
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            partial = file.with_suffix(".partial")
            partial.write_text(make(), encoding="utf-8")
            partial.replace(file)
    return file.read_text(encoding="utf-8")
