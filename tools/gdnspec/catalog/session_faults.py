"""Reads the tables of wrong schedulers and of kernels that only sessions reject, and makes their sources."""

from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.faults import edited
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer, nearest
from gdnspec.model.loading import load
from gdnspec.model.session_fault import SESSION_FAULTS_FILE, SessionFault, SessionFaultTable


def tables() -> list[Path]:
    """The tables of all families."""
    return sorted(paths.known_bad_dir().glob(f"*/{SESSION_FAULTS_FILE}"))


def read_table(table: Path) -> list[SessionFault]:
    """The rows of a table, whose edits fit their bases. Raises `SpecError` with every problem."""
    faults = load(SessionFaultTable, table).faults
    problems, seen = [], set()
    for i, fault in enumerate(faults):
        place = json_pointer("faults", i)
        if fault.name in seen:
            problems.append(Problem(table, f"an earlier row has the name {fault.name!r}", f"{place}/name"))
        seen.add(fault.name)
        try:
            source(fault, table)
        except PlacedError as error:
            problems.append(Problem(table, error.message, place + error.pointer, error.hint))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return faults


def base(fault: SessionFault, table: Path) -> Solution:
    """The right solution of a wrong kernel: beside the table, or one of the project. Raises `PlacedError`."""
    for root in (table.parent / "bases", paths.solutions_dir()):
        if (root / fault.base).is_dir():
            return load_solution(root / fault.base)
    raise PlacedError(
        "/base", f"no solution {fault.base!r}", "scheduler, pool_scheduler, or a solution in plain PyTorch"
    )


def source(fault: SessionFault, table: Path) -> str:
    """The text of the wrong file. Raises `PlacedError`."""
    if fault.is_scheduler:
        folder, file, where = paths.PACKAGE / "sessions", f"{fault.base}.py", f"the {fault.base.replace('_', ' ')}"
    else:
        solution = base(fault, table)
        folder, file, where = solution.folder, fault.edits[0].file, f"the base {fault.base!r}"
        if file not in solution.manifest.sources:
            raise PlacedError("/edits/0/file", f"{file!r} is not a source of {where}")
        for i, name in enumerate(fault.definitions):
            if name not in definitions() or name not in solution.manifest.entries:
                hint = nearest(name, solution.manifest.entries)
                raise PlacedError(f"/definitions/{i}", f"{fault.base!r} does not serve {name!r}", hint)
    for i, edit in enumerate(fault.edits):
        if edit.file != file:
            raise PlacedError(f"/edits/{i}/file", f"{edit.file!r} is not the file of {where}: {file}")
    return edited((folder / file).read_text(), list(enumerate(fault.edits)), where)
