"""Loads workloads, the lines of workloads.jsonl, and checks each against its definition."""

from pathlib import Path

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.catalog.families import FAMILY_FILE
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer, nearest
from gdnspec.model.loading import is_file, load_lines, starts_with
from gdnspec.model.workload import Workload

EMPTY = "is empty: a file of workloads has one JSON object per line"
MAKE = "gdnspec workloads generate writes such a file"
SESSIONS = "gdnspec check --sessions --workloads FILE judges sessions"


def refuse_sessions(file: Path) -> None:
    """Raises `SpecError` for a file of sessions, which belongs to a family, not to a definition."""
    if starts_with(file, "steps"):
        raise SpecError([Problem(file, "is a file of sessions, not of workloads", hint=SESSIONS)])


def load_workloads(file: Path, found: Found) -> list[Workload]:
    """All workloads of a file. Raises `SpecError` with every problem, and for a file without a line."""
    try:
        rows = load_lines(Workload, file)
    except SpecError:
        refuse_sessions(file)
        raise
    problems = [] if rows else [Problem(file, EMPTY, hint=MAKE)]
    seen: dict[str, int] = {}
    for number, workload in rows:
        if workload.name in seen:
            message = f"line {seen[workload.name]} already has the name {workload.name!r}"
            problems.append(Problem(file, message, f"line {number}: /name"))
        seen.setdefault(workload.name, number)
        problems += problems_of(workload, found, file, number)
    if problems:
        raise SpecError(problems)
    return [workload for _, workload in rows]


def problems_of(workload: Workload, found: Found, file: Path, number: int) -> list[Problem]:
    """Why a line is not a valid workload of this definition; empty if it is."""
    family = found.family
    if family.preset(workload.preset) is None:
        hint = nearest(workload.preset, family.presets)
        return [Problem(file, f"no preset {workload.preset!r}", f"line {number}: /preset", hint)]
    if workload.regime is not None and workload.regime not in family.about.regimes:
        hint = nearest(workload.regime, family.about.regimes)
        return [Problem(file, f"no regime {workload.regime!r}", f"line {number}: /regime", hint)]
    if workload.tensors is not None and not is_file(found.at(file).tensors(workload.tensors)):
        message = f"no file {workload.tensors!r} beside this file or in {found.folder.name}/"
        return [Problem(file, message, f"line {number}: /tensors")]
    if workload.suite == "fresh":
        message = "a file cannot contain fresh workloads: each check draws its own"
        return [Problem(file, message, f"line {number}: /suite", "gdnspec check --seed SEED draws them again")]
    if (problem := _columns(workload, found, file, number)) is not None:
        return [problem]
    try:
        workload.check(found.definition, preset_of(found, workload))
    except PlacedError as error:
        place = f"line {number}:" + (f" {error.pointer}" if error.pointer else "")
        return [Problem(file, error.message, place.rstrip(":"), error.hint)]
    return []


def _columns(workload: Workload, found: Found, file: Path, number: int) -> Problem | None:
    """Why the errors do not belong to a list of emulators, one error each; None if they do."""
    if workload.emulators is None:
        return None
    lists, name = found.family.about.emulators, workload.emulators.names
    if name not in lists:
        message = f"{FAMILY_FILE} has no list of emulators {name!r}"
        return Problem(file, message, f"line {number}: /emulators/names", nearest(name, lists))
    wanted = len(lists[name])
    for output, metrics in workload.emulators.errors.items():
        for metric, errors in metrics.items():
            if len(errors) != wanted:
                message = f"{len(errors)} errors instead of {wanted}: {name!r} in {FAMILY_FILE} has {wanted} emulators"
                return Problem(file, message, f"line {number}: {json_pointer('emulators', 'errors', output, metric)}")
    return None


_read: dict[Path, dict[str, Workload]] = {}


def by_name(found: Found) -> dict[str, Workload]:
    """Like `workloads`, by name. Cached: many traces belong to one file."""
    if found.workloads_file not in _read:
        _read[found.workloads_file] = {workload.name: workload for workload in workloads(found)}
    return _read[found.workloads_file]


def workloads(found: Found) -> list[Workload]:
    """The workloads that a definition ships; empty if it has no file. Raises `SpecError`."""
    return load_workloads(found.workloads_file, found) if found.workloads_file.is_file() else []
