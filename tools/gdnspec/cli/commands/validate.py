"""gdnspec validate: check files against their formats and against each other."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog import definitions as catalog
from gdnspec.catalog.carried_traces import CARRIED, load_proof, proof_files
from gdnspec.catalog.definitions import Found, load_definition, preset_problems
from gdnspec.catalog.extending import DEFINITION_FILE
from gdnspec.catalog.families import FAMILY_FILE, PRESETS_FILE, Family, families, load_presets
from gdnspec.catalog.sessions import load_sessions, sessions_file, with_sessions
from gdnspec.catalog.solutions import MANIFEST, load_solution, solution_folders
from gdnspec.catalog.trace_check import check_traces, is_trace_file
from gdnspec.catalog.traces import files_below
from gdnspec.catalog.workloads import EMPTY, MAKE, by_name, load_workloads
from gdnspec.cli.console import say
from gdnspec.cli.options import DefinitionsDir
from gdnspec.cli.reading import keep_all
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.family_file import FamilyFile
from gdnspec.model.fault import KNOWN_BAD_FILE, TABLE_FILE, KnownBad
from gdnspec.model.loading import is_file, jsonl, load, load_lines, parse_json
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import Workload

NAMED = (DEFINITION_FILE, FAMILY_FILE, PRESETS_FILE, MANIFEST, TABLE_FILE, KNOWN_BAD_FILE)
KINDS = f"{', '.join(NAMED)}, *.jsonl, *.safetensors, {CARRIED}/*.json, or a folder of these"


def validate(
    path: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help=f"Files: {KINDS}. If you name none: all that gdnspec ships."),
    ] = None,
    definition: Annotated[
        str | None, typer.Option(help="The definition of workloads or tensors that are outside of definitions/.")
    ] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Validate definitions, presets, workloads, sessions, solutions, faults, results, traces and captured tensors."""
    keep_all()
    files = list(_expand(path) if path else _everything())
    problems: list[Problem] = []
    traces: list[str | None] = []  # why each is stale
    for file in files:
        try:
            resolved = _resolved(file)
            if resolved.parent.match(str(CARRIED)):
                load_proof(resolved)
            elif is_trace_file(resolved):
                traces += check_traces(resolved, _solution)
            else:
                _one(resolved, definition)
        except SpecError as error:
            problems += error.problems or [Problem(file, str(error))]
    if problems:
        raise SpecError(list(dict.fromkeys(problems)))
    say(f"{len(files)} {'file' if len(files) == 1 else 'files'} valid")
    _say_stale(traces)


def _say_stale(traces: list[str | None]) -> None:
    # A stale trace is valid, so it is no problem; but the reader should know.
    reasons = Counter(reason.split(":")[0] for reason in traces if reason)
    if reasons:
        why = ", ".join(f"{count} where {reason}" for reason, count in reasons.most_common())
        say(f"{reasons.total()} of {len(traces)} traces stale: {why}; gdnspec bench --save measures them again")


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except RuntimeError:
        raise SpecError([Problem(file, "is a loop of symbolic links")]) from None


def _everything() -> Iterable[Path]:
    for family in families().values():
        yield family.file
        yield family.presets_file
        if is_file(sessions_file(family)):
            yield sessions_file(family)
        for kind in (DEFINITION_FILE, "workloads.jsonl", "tensors/*.safetensors"):
            yield from sorted(family.folder.glob(f"*/{kind}"))
    for folder in solution_folders():
        yield folder / MANIFEST
        yield from files_below(folder)
        yield from proof_files(folder)


def _expand(given: list[Path]) -> Iterable[Path]:
    for path in given:
        if not path.is_dir():
            yield path
            continue
        found = [f for name in NAMED for f in sorted(path.rglob(name))]
        found += [f for kind in ("*.jsonl", "*.safetensors", f"{CARRIED}/*.json") for f in sorted(path.rglob(kind))]
        if not found:
            raise SpecError([Problem(path, "holds no file that gdnspec can validate", hint=KINDS)])
        yield from found


def _one(file: Path, definition: str | None) -> None:
    if file.name == DEFINITION_FILE:
        problems = _with_presets(file, _found(file).family.presets_file)
        if problems:
            raise SpecError(problems)
    elif file.name == FAMILY_FILE:
        load(FamilyFile, file)
    elif file.name == PRESETS_FILE:
        _presets(file)
    elif file.name == MANIFEST:
        _solution(file.parent)
    elif file.name == TABLE_FILE:
        from gdnspec.catalog.faults import check_table

        with tempfile.TemporaryDirectory() as scratch:
            check_table(file, Path(scratch))
    elif file.name == KNOWN_BAD_FILE:
        load(KnownBad, file)
    elif file.suffix == ".jsonl":
        first = _first_line(file)
        if "status" in first:
            load_lines(CheckResult, file)
        elif "steps" in first:
            load_sessions(file, _with_sessions(file))
        else:
            _workloads(file, _owner(file, file.parent, definition))
    elif file.suffix == ".safetensors":
        _tensors(file, _owner(file, file.parents[1], definition))
    elif not file.exists():
        raise SpecError([Problem(file, "no such file")])
    else:
        raise SpecError([Problem(file, "not a file that gdnspec knows", hint=f"it reads {KINDS}")])


# Several files belong to one definition, one solution or one file of presets: each is read once.
_found, _solution, _known_presets = cache(load_definition), cache(load_solution), cache(load_presets)


@cache
def _with_presets(file: Path, presets_file: Path) -> list[Problem]:
    shipped = {family.presets_file for family in families().values()}
    if presets_file in shipped and presets_file.parent == file.parent.parent:
        with contextlib.suppress(SpecError):
            catalog.definitions()  # has already checked all definitions with these presets
            return []
    return preset_problems(_found(file), _known_presets(presets_file), presets_file)


def _presets(file: Path) -> None:
    problems = []
    everything = catalog.definitions().values()
    of_family = [found for found in everything if found.family.presets_file == file]
    for found in of_family or everything:  # a file outside of a family is checked with all definitions
        problems += _with_presets(found.file, file)
    if problems:
        raise SpecError(problems)


def _first_line(file: Path) -> dict[str, object]:
    """The first line of a file. Results have a status, sessions have steps, workloads neither. Raises `SpecError` if
    there is no line."""
    for number, text in jsonl(file):
        data = parse_json(text, file, number)
        return data if isinstance(data, dict) else {}
    raise SpecError([Problem(file, EMPTY, hint=MAKE)])


def _with_sessions(file: Path) -> Family:
    """The family of a file of sessions: that of its folder, or the only one that has sessions. Raises `SpecError`."""
    known = with_sessions()
    for family in known.values():
        if family.folder.resolve() == file.parent:
            return family
    if len(known) != 1:
        raise SpecError([Problem(file, f"is in no folder of a family with sessions: {', '.join(known) or 'none has'}")])
    return next(iter(known.values()))


def _owner(file: Path, folder: Path, definition: str | None) -> Found:
    if definition is not None:
        return catalog.definition(definition)
    if (folder / DEFINITION_FILE).is_file():
        return _found(folder / DEFINITION_FILE)
    if file.stem in catalog.definitions():  # gdnspec workloads from-requests names its files so
        return catalog.definition(file.stem)
    hint = nearest(folder.name, catalog.definitions())
    raise SpecError([Problem(file, "is in no definition's folder: name its definition with --definition", hint=hint)])


def _workloads(file: Path, found: Found) -> None:
    if file == found.workloads_file:
        by_name(found)  # its tensors are files of their own, which a folder is validated with
        return
    for line in load_workloads(file, found):
        if line.tensors is not None:
            _recorded(found.at(file).tensors(line.tensors), found, line)


def _tensors(file: Path, found: Found) -> None:
    from gdnspec.inputs.raw import read_inputs

    definition = found.definition
    lines = [
        line for line in by_name(found).values() if line.tensors and (found.folder / line.tensors).resolve() == file
    ]
    if not lines:  # recorded, but not used by a workload yet: optional inputs may be absent
        read_inputs(file, definition, _absent(file, found))
    for line in lines:
        _recorded(file, found, line)


def _recorded(file: Path, found: Found, line: Workload) -> None:
    """Holds a file of tensors to the workload that names it. Raises `SpecError`."""
    from gdnspec.inputs.raw import digest, hold_to, read_inputs

    tensors = read_inputs(file, found.definition, line.omit)
    hold_to(file, tensors, found.definition, line.scope(found.definition, catalog.preset_of(found, line)))
    found_hash = digest((name, t.dtype, t.shape, t.data) for name, t in tensors.items())
    if line.sha256 is not None and line.sha256 != found_hash:
        message = f"workload {line.name!r} says sha256 {line.sha256[:12]}.., the inputs have {found_hash[:12]}.."
        raise SpecError([Problem(file, message)])


def _absent(file: Path, found: Found) -> list[str]:
    from gdnspec.inputs.raw import read_raw

    return [t.name for t in found.definition.inputs if t.optional and t.name not in read_raw(file)]
