"""The solutions that test the judge: tests/known_bad/ of this project and of other families, and tests/honest/.

A wrong solution is a folder with a known_bad.json, or a row of a family's faults.json, which edits lines of a correct
solution, its base. That is a folder beside the table, or one in solutions/. A row is written into the cache as a
folder, so that it runs like any solution.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.families import elsewhere
from gdnspec.catalog.kept import partial
from gdnspec.catalog.solutions import MANIFEST, Solution, load_solution
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer, nearest
from gdnspec.model.fault import KNOWN_BAD_FILE, TABLE_FILE, Edit, Fault, FaultTable, KnownBad, Rejection
from gdnspec.model.loading import build, load
from gdnspec.model.solution import Manifest

BASES = "bases"
DESCRIPTIONS = {"wrong": "Wrong on purpose.", "cheat": "Cheats on purpose."}


@dataclass(frozen=True)
class Bad:
    """A wrong solution, and how the judge must reject it."""

    solution: Solution
    known: Rejection


@dataclass(frozen=True)
class Made:
    """A row of a table, its place, and the files of the wrong solution that it describes."""

    table: Path
    place: str
    fault: Fault
    files: dict[str, bytes]


def known_bad(names: Collection[str] | None = None) -> list[Bad]:
    """All wrong solutions, or those with these names, sorted by name. Raises `SpecError` with every problem."""
    found = [*_folders(names), *(_written(made, paths.faults_cache()) for made in _rows() if _wanted(made, names))]
    if names is None and not found:
        raise SpecError([Problem(paths.known_bad_dir(), "contains no wrong solution")])
    return sorted(found, key=lambda item: item.solution.name)


def rejections() -> dict[str, Rejection]:
    """The expected rejection of each wrong solution, by name. It writes no solution."""
    return {name: known for name, _, known in sorted(rejections_by_family(), key=lambda item: item[0])}


def rejections_by_family() -> list[tuple[str, str, Rejection]]:
    """The name of each wrong solution, its family, and its expected rejection."""
    found: list[tuple[str, str, Rejection]] = [
        (file.parent.name, file.parents[1].name, load(KnownBad, file)) for file in _known_bad_files()
    ]
    for table in _tables():
        found += [(fault.name, table.parent.name, fault) for fault in load(FaultTable, table).faults]
    return found


def honest() -> list[Solution]:
    """Correct solutions: the project's own, those of tests/honest/, and the bases of wrong ones."""
    roots = [paths.solutions_dir(), paths.honest_dir()]
    return [solution for root in roots for solution in _all(root)] + bases()


def bases() -> list[Solution]:
    """The base solutions of all tables."""
    return [solution for table in _tables() for solution in _bases(table).values()]


def of_family(name: str) -> list[str]:
    """The names of a family's wrong solutions and of their bases."""
    folders = [folder for folder in _of_families() if folder.name == name]
    return [
        *(file.parent.name for folder in folders for file in _known_bad_files(folder)),
        *(fault.name for folder in folders for table in _tables(folder) for fault in load(FaultTable, table).faults),
        *(base for folder in folders for table in _tables(folder) for base in _bases(table)),
    ]


def check_table(table: Path, scratch: Path) -> None:
    """Raises `SpecError` with every problem of a table and of the solutions that it describes, written to `scratch`."""
    problems: list[Problem] = []
    for made in read_table(table):
        try:
            _written(made, scratch)
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)


# --- folders ----------------------------------------------------------------------------------------------------


def _of_families() -> list[Path]:
    """The known_bad folder of each family that has one."""
    roots = [paths.known_bad_dir(), *(paths.known_bad_below(root.parent) for root in elsewhere())]
    return [folder for root in dict.fromkeys(roots) for folder in sorted(root.glob("*/"))]


def _known_bad_files(*folders: Path) -> list[Path]:
    """The known_bad.json files in these folders, or in those of all families."""
    return [file for folder in folders or _of_families() for file in sorted(folder.glob(f"*/{KNOWN_BAD_FILE}"))]


def _folders(names: Collection[str] | None) -> Iterator[Bad]:
    problems = [
        Problem(file.parent, f"has a {file.name} but no {MANIFEST}")
        for file in _known_bad_files()
        if not (file.parent / MANIFEST).is_file()
    ]
    if problems:
        raise SpecError(problems)
    for family in _of_families():
        for solution in _all(family, least=0):
            if names is None or solution.name in names:
                yield Bad(solution, load(KnownBad, solution.folder / KNOWN_BAD_FILE))


def _all(root: Path, least: int = 1) -> list[Solution]:
    found: list[Solution] = []
    problems: list[Problem] = []
    for file in sorted(root.glob(f"*/{MANIFEST}")):
        try:
            found.append(load_solution(file.parent))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    if len(found) < least:
        raise SpecError([Problem(root, "contains no solution")])
    return found


# --- rows of a table --------------------------------------------------------------------------------------------


def _tables(*folders: Path) -> list[Path]:
    return [folder / TABLE_FILE for folder in folders or _of_families() if (folder / TABLE_FILE).is_file()]


def _bases(table: Path) -> dict[str, Solution]:
    return {solution.name: solution for solution in _all(table.parent / BASES, least=0)}


def _named(table: Path, faults: list[Fault]) -> dict[str, Solution]:
    """The bases by name: those beside the table, and the project's own solutions that rows name."""
    found = _bases(table)
    for name in sorted({fault.base for fault in faults} - found.keys()):
        if (paths.solutions_dir() / name / MANIFEST).is_file():
            found[name] = load_solution(paths.solutions_dir() / name)
    return found


def _wanted(made: Made, names: Collection[str] | None) -> bool:
    return names is None or made.fault.name in names


def _rows() -> Iterator[Made]:
    """The rows of all tables. A name may occur only once."""
    seen: dict[str, Path] = {}
    for table in _tables():
        for made in read_table(table):
            if made.fault.name in seen:
                message = f"a row of {paths.shown(seen[made.fault.name])} already has the name {made.fault.name!r}"
                raise SpecError([Problem(table, message, f"{made.place}/name")])
            seen[made.fault.name] = table
            yield made


def read_table(table: Path) -> list[Made]:
    """Every row with the files of its solution. Raises `SpecError` with every problem. It writes nothing."""
    faults = load(FaultTable, table).faults
    known = _named(table, faults)
    rows: list[Made] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for i, fault in enumerate(faults):
        place = json_pointer("faults", i)
        if taken := _taken(table, fault.name, known, first):
            problems.append(Problem(table, f"{taken} already has the name {fault.name!r}", f"{place}/name"))
        first.setdefault(fault.name, i)
        if fault.base not in known:
            message = f"no base {fault.base!r} in {paths.shown(table.parent / BASES)} or among the solutions"
            problems.append(Problem(table, message, f"{place}/base", nearest(fault.base, known)))
            continue
        try:
            rows.append(Made(table, place, fault, _files(table, place, fault, known[fault.base])))
        except PlacedError as error:
            problems.append(Problem(table, error.message, place + error.pointer, error.hint))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return rows


def _taken(table: Path, name: str, known: dict[str, Solution], first: dict[str, int]) -> str:
    """What else has this name; empty if it is free."""
    if name in first:
        return f"row {json_pointer('faults', first[name])}"
    if name in known:
        return "a base of this table"
    folder = table.parent / name
    return f"the folder {paths.shown(folder)}" if folder.exists() else ""


def _files(table: Path, place: str, fault: Fault, base: Solution) -> dict[str, bytes]:
    """The files of the wrong solution, including its manifest."""
    edits: dict[str, list[tuple[int, Edit]]] = {}
    for i, edit in enumerate(fault.edits):
        if edit.file not in base.manifest.sources:
            raise PlacedError(
                f"/edits/{i}/file",
                f"{edit.file!r} is not a source of the base {base.name!r}",
                nearest(edit.file, base.manifest.sources),
            )
        edits.setdefault(edit.file, []).append((i, edit))
    files = {}
    for name in base.manifest.sources:
        content = (base.folder / name).read_bytes()
        if name in edits:
            content = edited(content.decode(), edits[name], f"{name} of the base {base.name!r}").encode()
        files[name] = content
    manifest = base.manifest.model_dump(mode="json")
    manifest |= {"name": fault.name, "description": f"{DESCRIPTIONS[fault.kind]} {fault.fault}"}
    manifest |= fault.manifest.model_dump(include={"deterministic", "batch_invariant"}, exclude_none=True)
    manifest["entries"] = {name: fault.manifest.entry_of(base.manifest.entries.get(name)) for name in fault.definitions}
    unserved = [name for name, entry in manifest["entries"].items() if not {"entry", "call"} <= set(entry)]
    if unserved:
        raise PlacedError(
            f"/definitions/{fault.definitions.index(unserved[0])}",
            f"the base {base.name!r} does not serve {unserved[0]!r}",
            f"{nearest(unserved[0], base.manifest.entries)}; or give `entry` and `call` under `manifest`",
        )
    try:
        build(Manifest, manifest, table)
    except SpecError as error:
        raise SpecError([_in_row(table, place, problem) for problem in error.problems]) from None
    return {MANIFEST: (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode(), **files}


def edited(text: str, edits: list[tuple[int, Edit]], where: str) -> str:
    """The text after all edits. Each edit finds its place in the original text. Raises `PlacedError`."""
    lines = text.split("\n")
    spans: list[tuple[int, int, list[str]]] = []
    for i, edit in edits:
        length = len(edit.correct)
        at = [start for start in range(len(lines) - length + 1) if lines[start : start + length] == edit.correct]
        if len(at) != 1:
            found = f"the text occurs {len(at)} times in {where}" if at else f"the text is not in {where}"
            hint = "add a line before or after it" if at else "give whole lines with their indentation"
            raise PlacedError(f"/edits/{i}/correct", found, hint)
        if any(start < at[0] + length and at[0] < stop for start, stop, _ in spans):
            raise PlacedError(f"/edits/{i}/correct", f"another edit already changes these lines of {where}")
        spans.append((at[0], at[0] + length, edit.wrong))
    for start, stop, wrong in sorted(spans, reverse=True):
        lines[start:stop] = wrong
    return "\n".join(lines)


def _written(made: Made, root: Path) -> Bad:
    """The row as a solution, written once to `root/<hash of its files>/<name>/`."""
    digest = hashlib.sha256()
    for name, content in sorted(made.files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    folder = root / digest.hexdigest()[:24] / made.fault.name
    for name, content in made.files.items():
        file = folder / name
        try:
            if not file.is_file() or file.read_bytes() != content:
                with partial(file) as handle, open(handle, "wb", closefd=False) as stream:
                    stream.write(content)
        except OSError as error:
            why = f"cannot be written: {error.strerror or error}"
            raise SpecError([Problem(file, why, hint="set GDNSPEC_CACHE to move the cache")]) from None
    try:
        return Bad(load_solution(folder), made.fault)
    except SpecError as error:
        raise SpecError([_in_row(made.table, made.place, problem) for problem in error.problems]) from None


def _in_row(table: Path, place: str, problem: Problem) -> Problem:
    """Moves a problem of a generated file to the row that generates it."""
    where = f" at {problem.place}" if problem.place else ""
    return Problem(table, f"in its {problem.file.name}{where}: {problem.message}", place, problem.hint)
