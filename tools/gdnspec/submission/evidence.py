"""What was found about a solution on its author's machine: a folder of verdicts and traces, and what they belong to.

The folder stays, so that the same sources and the same evidence can be packed again, byte for byte.
"""

import datetime
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from gdnspec import __version__, paths
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.solutions import Solution
from gdnspec.model.base import Model, Version1
from gdnspec.model.definition import Name, Text
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, load, numbered, parse_json, read_text
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace

EVIDENCE, VERDICTS, TRACES = "evidence.json", "verdicts.jsonl", "traces.jsonl"
BADGE = "strict"  # a suite that a conforming solution may fail
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
M = TypeVar("M", bound=Model)


class Question(Model):
    """sha256 of a definition.json and of its workloads.jsonl."""

    definition: Sha256
    workloads: Sha256

    @staticmethod
    def of(found: Found) -> "Question":
        """As the files are now."""
        return Question(definition=sha256(found.file.read_bytes()), workloads=sha256(found.workloads_file.read_bytes()))


class Evidence(Model):
    """evidence.json: of which sources, on what, by which gdnspec, with which seed, in what environment. `recorded` is
    UTC; `files` are those beside it."""

    schema_version: Version1
    gdnspec: Text
    solution: Name
    source_hash: Sha256
    seed: Annotated[int, Field(ge=0)]
    recorded: Text
    definitions: dict[Name, Question]
    environment: dict[str, str | None]
    files: dict[str, Sha256]


@dataclass(frozen=True)
class Recorded:
    """An evidence folder that was read: the manifest, and its files as they are."""

    evidence: Evidence
    files: dict[str, bytes]


def folder_of(solution: Solution) -> Path:
    """Where the evidence for a solution of this name lies."""
    return paths.cache_dir() / "evidence" / solution.name


class Recording:
    """Takes results down as they come, over what was recorded before; `finish` makes evidence of them."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.folder = solution, folder_of(solution)
        try:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            for name in (VERDICTS, TRACES):
                (self.folder / name).touch()
        except OSError as error:
            raise SpecError(
                [Problem(self.folder, f"cannot be written: {error.strerror}", hint="GDNSPEC_CACHE")]
            ) from None

    def add(self, result: CheckResult | Trace) -> None:
        name = VERDICTS if isinstance(result, CheckResult) else TRACES
        if isinstance(result, CheckResult):
            result = result.model_copy(update={"repeat": ""})  # which names folders of this machine
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(line(result))

    def finish(self, seed: int, environment: Mapping[str, str | None]) -> Recorded:
        """Without it the folder holds no evidence."""
        files = {name: (self.folder / name).read_bytes() for name in (VERDICTS, TRACES)}
        evidence = Evidence(
            schema_version=1, gdnspec=__version__, solution=self.solution.name, source_hash=self.solution.source_hash,
            seed=seed, recorded=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            definitions={name: Question.of(definition(name)) for name in sorted(self.solution.manifest.entries)},
            environment=dict(environment), files={name: sha256(data) for name, data in files.items()},
        )  # fmt: skip
        (self.folder / EVIDENCE).write_text(json.dumps(evidence.model_dump(mode="json"), indent=2) + "\n")
        return Recorded(evidence, files)


def recorded(solution: Solution) -> Recorded:
    """The evidence for a solution as it is now. Raises `SpecError` where there is none, or where it is for something
    else."""
    file = folder_of(solution) / EVIDENCE
    again = f"gdnspec submit {solution.name} records it anew"
    if not file.exists():
        raise SpecError([Problem(file, "no evidence is recorded, or it is not finished", hint=again)])
    evidence = load(Evidence, file)
    files = {name: read_text(file.parent / name).encode() for name in (VERDICTS, TRACES)}
    problems = [
        Problem(file.parent / name, f"has changed since {EVIDENCE} was written", hint=again)
        for name, data in files.items()
        if evidence.files.get(name) != sha256(data)
    ]
    if evidence.source_hash != solution.source_hash:
        problems.append(Problem(file, "is of other sources", "/source_hash", again))
    for name in sorted({*evidence.definitions, *solution.manifest.entries}):
        if evidence.definitions.get(name) != Question.of(definition(name)):
            problems.append(
                Problem(file, "the definition or its workloads have changed", f"/definitions/{name}", again)
            )
    if problems:
        raise SpecError(problems)
    return Recorded(evidence, files)


def lines_of(model: type[M], data: bytes, file: Path) -> list[M]:
    """The models of a JSONL file's content; raises `SpecError` with the first that is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError([Problem(file, f"not UTF-8 text: {error.reason} at byte {error.start}")]) from None
    return [build(model, parse_json(entry, file, number), file, number) for number, entry in numbered(text)]


def unproven(solution: str, definitions: Iterable[str], verdicts: Iterable[CheckResult]) -> list[str]:
    """What the verdicts lack, or have too many of: a failure outside of the badge, a definition on which nothing
    passed."""
    results = list(verdicts)
    found = [
        f"{r.status} on {r.definition}/{r.workload}: {(r.message.splitlines() or [''])[0][:300]}"
        for r in results
        if r.failed and r.suite != BADGE
    ]
    found += [f"a verdict on {r.solution!r}" for r in results if r.solution != solution]
    for name in definitions:
        mine = [r for r in results if r.definition == name and r.suite != BADGE]
        if not any(r.status == "PASSED" for r in mine) and not any(r.failed for r in mine):
            why = next((r.message for r in mine if r.message), "no verdict")
            found.append(f"nothing ran on {name}: {why}")
    return found


def line(model: Model) -> str:
    return json.dumps(model.model_dump(mode="json"), sort_keys=True) + "\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
