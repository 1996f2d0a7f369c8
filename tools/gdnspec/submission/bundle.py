"""A bundle: a manifest of all files, the folder of a solution, and the evidence for it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from gdnspec.catalog.solutions import MANIFEST, MAX_SOURCE_BYTES, Solution, is_plain, source_hash
from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, larger_than, parse_json
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import MOST_AUTHORS, Manifest
from gdnspec.model.trace import Trace
from gdnspec.submission import evidence
from gdnspec.submission.archive import LONGEST_NAME, MOST_FILES, name_problem, pack, unpack
from gdnspec.submission.evidence import Evidence, Recorded, Sha256, sha256

BUNDLE, SOLUTION, EVIDENCE, README = "bundle.json", "solution/", "evidence/", "README.md"


class BundleManifest(Model):
    """bundle.json. `files`: the sha256 of every other file."""

    most_bytes: ClassVar[int] = 1 << 20
    schema_version: Version1
    name: Name
    license: Text
    authors: Annotated[list[Text], Field(min_length=1, max_length=MOST_AUTHORS)]
    evidence: Evidence
    files: Annotated[dict[Annotated[str, Field(max_length=LONGEST_NAME)], Sha256], Field(max_length=MOST_FILES)]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and agrees with its manifest. `folder`: the solution's files by name."""

    file: Path
    sha256: str
    manifest: BundleManifest
    solution: Manifest
    folder: dict[str, bytes]
    verdicts: list[CheckResult]
    traces: list[Trace]


# --- packing ----------------------------------------------------------------------------------------------------


def packed(solution: Solution, recorded: Recorded) -> bytes:
    """The archive. The same sources and the same evidence give the same bytes. Raises `SpecError`, for example if the
    sources have changed since they were checked, or if a verdict occurs twice."""
    folder = folder_files(solution)
    problems = doubled_in(solution.folder, recorded.files[evidence.VERDICTS])
    if source_hash(solution.manifest, folder.__getitem__, solution.variant) != recorded.evidence.source_hash:
        again = f"gdnspec submit {solution.name} records new evidence"
        problems.append(Problem(solution.folder, "the sources have changed since they were checked", hint=again))
    if problems:
        raise SpecError(problems)
    files = {SOLUTION + name: data for name, data in folder.items()}
    files |= {EVIDENCE + name: data for name, data in recorded.files.items()}
    manifest = BundleManifest(
        schema_version=1, name=solution.manifest.name, license=solution.manifest.license,
        authors=list(solution.manifest.authors), evidence=recorded.evidence,
        files={name: sha256(data) for name, data in sorted(files.items())},
    )  # fmt: skip
    files[BUNDLE] = (json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()
    return pack(files)


def doubled_in(file: Path, lines: bytes) -> list[Problem]:
    """One problem per verdict that occurs more than once in the lines."""
    at = file / EVIDENCE / evidence.VERDICTS
    return [Problem(at, text) for text in evidence.doubled(evidence.lines_of(CheckResult, lines, at))]


def folder_files(solution: Solution) -> dict[str, bytes]:
    """The files that a bundle takes from a solution's folder: manifest, sources, and the README if there is one. Raises
    `SpecError` with every name that a bundle cannot hold."""
    names = [MANIFEST, *solution.manifest.sources]
    if README not in names and os.path.lexists(solution.folder / README):
        names.append(README)
    problems = []
    files = {}
    for name in names:
        path = solution.folder / name
        why = name_problem(name) or ("" if is_plain(solution.folder, name) else "a link, or not a regular file")
        if why:
            problems.append(Problem(solution.folder / MANIFEST, f"{name!r} cannot be packed: {why}", "/sources"))
        else:
            files[name] = path.read_bytes()
    if problems:
        raise SpecError(problems)
    return files


# --- reading ----------------------------------------------------------------------------------------------------


def read(file: Path) -> Bundle:
    """Reads a bundle. Raises `SpecError` if something is missing or contradicts the manifest."""
    files = unpack(file)
    if BUNDLE not in files:
        raise SpecError([Problem(file, f"has no {BUNDLE}: gdnspec submit packs one")])
    manifest = build(BundleManifest, _json(file, files, BUNDLE, BundleManifest), file / BUNDLE)
    _hold_to_hashes(file, manifest, {name: data for name, data in files.items() if name != BUNDLE})
    folder = {name.removeprefix(SOLUTION): data for name, data in files.items() if name.startswith(SOLUTION)}
    solution = build(Manifest, _json(file, files, SOLUTION + MANIFEST, Manifest), file / SOLUTION / MANIFEST)
    problems = _contradictions(file, manifest, solution, folder)
    if problems:
        raise SpecError(problems)
    at = file / EVIDENCE / evidence.VERDICTS
    verdicts = evidence.lines_of(CheckResult, files[EVIDENCE + evidence.VERDICTS], at)
    if twice := evidence.doubled(verdicts):
        raise SpecError([Problem(at, text, hint="gdnspec submit packs it again") for text in twice])
    traces = evidence.lines_of(Trace, files[EVIDENCE + evidence.TRACES], file / EVIDENCE / evidence.TRACES)
    return Bundle(file, sha256(pack(files)), manifest, solution, folder, verdicts, traces)


def _json(file: Path, files: dict[str, bytes], name: str, model: type[Model]) -> object:
    if len(files[name]) > model.most_bytes:
        raise SpecError([Problem(file / name, larger_than(model.most_bytes))])
    try:
        return parse_json(files[name].decode(), file / name)
    except UnicodeDecodeError as error:
        raise SpecError([Problem(file / name, f"not UTF-8 text: {error.reason} at byte {error.start}")]) from None


def _hold_to_hashes(file: Path, manifest: BundleManifest, files: dict[str, bytes]) -> None:
    needed = [SOLUTION + MANIFEST, EVIDENCE + evidence.VERDICTS, EVIDENCE + evidence.TRACES]
    problems = [Problem(file, f"has no {name}") for name in needed if name not in files]
    for name in sorted({*files, *manifest.files}):
        if name not in manifest.files:
            problems.append(Problem(file, f"{name!r} is not in its manifest", "/files"))
        elif name not in files:
            problems.append(Problem(file, f"{name!r} is in its manifest, but missing", "/files"))
        elif sha256(files[name]) != manifest.files[name]:
            problems.append(Problem(file, f"{name!r} has another sha256 than its manifest says", "/files"))
        elif name not in needed and not name.startswith(SOLUTION):
            problems.append(Problem(file, f"{name!r} does not belong in a bundle", "/files"))
    for name in (evidence.VERDICTS, evidence.TRACES):
        if manifest.evidence.files.get(name) != manifest.files.get(EVIDENCE + name):
            problems.append(Problem(file, f"its evidence is for another {name}", f"/evidence/files/{name}"))
    if problems:
        raise SpecError(problems)


def _contradictions(
    file: Path, manifest: BundleManifest, solution: Manifest, folder: dict[str, bytes]
) -> list[Problem]:
    """Contradictions between bundle.json and the solution's own manifest."""
    problems = [
        Problem(file, f"{key} is {getattr(manifest, key)!r} here, {getattr(solution, key)!r} in {MANIFEST}", f"/{key}")
        for key in ("name", "license", "authors")
        if getattr(manifest, key) != getattr(solution, key)
    ]
    asked = Solution(solution, file).named(manifest.evidence.solution)
    if asked is None:
        message = f"evidence for {manifest.evidence.solution!r}, which is not in the bundle"
        problems.append(Problem(file, message, "/evidence/solution"))
    elif sorted(manifest.evidence.definitions) != evidence.asked_of(asked):
        problems.append(Problem(file, "evidence for other definitions than it serves", "/evidence/definitions"))
    listed = {MANIFEST, *solution.sources}
    problems += [Problem(file, f"source {name!r} is not in it") for name in sorted(listed - set(folder))]
    problems += [Problem(file, f"{name!r} is not among the sources") for name in sorted({*folder} - {*listed, README})]
    total = sum(len(data) for name, data in folder.items() if name in listed)
    if total > MAX_SOURCE_BYTES:
        problems.append(Problem(file, f"sources of over {MAX_SOURCE_BYTES >> 20} MiB"))
    if problems or asked is None:
        return problems
    if source_hash(solution, folder.__getitem__, asked.variant) != manifest.evidence.source_hash:
        problems.append(Problem(file, "its evidence is for other sources", "/evidence/source_hash"))
    return problems
