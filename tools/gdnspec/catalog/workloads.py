"""Workloads: the lines of a definition's workloads.jsonl, each checked against its definition."""

from pathlib import Path

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.catalog.families import FAMILY_FILE
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer, nearest
from gdnspec.model.loading import is_file, load_lines
from gdnspec.model.workload import Workload


def load_workloads(file: Path, found: Found) -> list[Workload]:
    """All lines of a file; raises `SpecError` with every problem."""
    rows = load_lines(Workload, file)
    problems = []
    seen: dict[str, int] = {}
    for number, workload in rows:
        if workload.name in seen:
            message = f"{workload.name!r} stands at line {seen[workload.name]} already"
            problems.append(Problem(file, message, f"line {number}: /name"))
        seen.setdefault(workload.name, number)
        problems += problems_of(workload, found, file, number)
    if problems:
        raise SpecError(problems)
    return [workload for _, workload in rows]


def problems_of(workload: Workload, found: Found, file: Path, number: int) -> list[Problem]:
    """What keeps one line from being a workload of this definition."""
    family = found.family
    if family.preset(workload.preset) is None:
        hint = nearest(workload.preset, family.presets)
        return [Problem(file, f"no preset {workload.preset!r}", f"line {number}: /preset", hint)]
    if workload.regime is not None and workload.regime not in family.about.regimes:
        hint = nearest(workload.regime, family.about.regimes)
        return [Problem(file, f"no regime {workload.regime!r}", f"line {number}: /regime", hint)]
    if workload.tensors is not None and not is_file(found.at(file).tensors(workload.tensors)):
        message = f"no file {workload.tensors!r} beside it or in {found.folder.name}/"
        return [Problem(file, message, f"line {number}: /tensors")]
    if workload.suite == "fresh":
        message = "fresh workloads are drawn by each check, and kept in no file"
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
    """What keeps its figures from being those of the emulators of a list, one each."""
    if workload.emulators is None:
        return None
    lists, name = found.family.about.emulators, workload.emulators.names
    if name not in lists:
        message = f"no list of emulators {name!r} in {FAMILY_FILE}"
        return Problem(file, message, f"line {number}: /emulators/names", nearest(name, lists))
    wanted = len(lists[name])
    for output, metrics in workload.emulators.errors.items():
        for metric, errors in metrics.items():
            if len(errors) != wanted:
                message = f"{len(errors)} figures, not {wanted}: one for each emulator of {name!r} in {FAMILY_FILE}"
                return Problem(file, message, f"line {number}: {json_pointer('emulators', 'errors', output, metric)}")
    return None


_read: dict[Path, dict[str, Workload]] = {}


def by_name(found: Found) -> dict[str, Workload]:
    """As `workloads`, by name. One run reads a file once, however many traces belong to it."""
    if found.workloads_file not in _read:
        _read[found.workloads_file] = {workload.name: workload for workload in workloads(found)}
    return _read[found.workloads_file]


def workloads(found: Found) -> list[Workload]:
    """The workloads that a definition ships; none where it has no file."""
    return load_workloads(found.workloads_file, found) if found.workloads_file.is_file() else []
