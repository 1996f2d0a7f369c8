"""Evidence for a solution from its author's machine: a folder of verdicts and traces, and what they belong to.

Each run records into its own folder, so that two runs at once do not mix. The last finished run is kept, so that the
same sources and the same evidence can be packed again, byte for byte.
"""

import contextlib
import datetime
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from gdnspec import __version__, paths
from gdnspec.catalog import kept
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.solutions import Solution
from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import from_text, larger_than, load, numbered, read_text
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import MOST_ENTRIES, SolutionName
from gdnspec.model.trace import Trace

EVIDENCE, VERDICTS, TRACES = "evidence.json", "verdicts.jsonl", "traces.jsonl"
LATEST = "latest"  # this file holds the name of the last run's folder
MOST_LINES, LONGEST_LINE = 20_000, 1 << 20
SUITES = ("smoke", "fresh", "conformance", "strict")  # in this order, so that errors show early
BADGE = "strict"  # a suite that a conforming solution may fail
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
Word = Annotated[str, Field(max_length=200)]
M = TypeVar("M", bound=Model)


class Question(Model):
    """Two sha256: of a definition.json followed by those that it extends, and of its workloads.jsonl."""

    definition: Sha256
    workloads: Sha256

    @staticmethod
    def of(found: Found) -> "Question":
        """The hashes of the files as they are now."""
        definition = b"".join(file.read_bytes() for file in found.files)
        return Question(definition=sha256(definition), workloads=sha256(found.workloads_file.read_bytes()))


class Evidence(Model):
    """evidence.json: the sources, definitions, gdnspec, seed and environment of the run. `recorded`: a time in UTC.
    `files`: the sha256 of the files beside it."""

    most_bytes: ClassVar[int] = 1 << 20
    schema_version: Version1
    gdnspec: Text
    solution: SolutionName
    source_hash: Sha256
    seed: Annotated[int, Field(ge=0)]
    recorded: Text
    definitions: Annotated[dict[Name, Question], Field(max_length=MOST_ENTRIES)]
    environment: Annotated[dict[Word, Text | None], Field(max_length=100)]
    files: Annotated[dict[Word, Sha256], Field(max_length=10)]


@dataclass(frozen=True)
class Recorded:
    """An evidence folder that was read: its manifest, and its files."""

    evidence: Evidence
    files: dict[str, bytes]


def served_by(solution: Solution) -> dict[str, list[str]]:
    """What evidence for a solution covers: the definitions of the solution and of each variant, by name. Evidence for a
    variant covers only this variant."""
    return {one.name: list(one.manifest.entries) for one in (solution, *solution.variants)}


def asked_of(solution: Solution) -> list[str]:
    """The definitions for which evidence of a solution has verdicts."""
    return sorted({name for names in served_by(solution).values() for name in names})


def folder_of(solution: Solution) -> Path:
    """The folder with the runs of a solution of this name."""
    return paths.cache_dir() / "evidence" / solution.name


def latest(solution: Solution) -> Path:
    """The folder of the last finished run. An earlier version of gdnspec wrote directly into `folder_of(solution)`."""
    runs = folder_of(solution)
    try:
        name = (runs / LATEST).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return runs
    return runs / Path(name).name


class Recording:
    """A context manager that writes the results of one run as they arrive. `finish` makes them the evidence; until then
    the last run's is kept. Results without `finish` are deleted at the end. Raises `SpecError` if the cache cannot be
    written."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.source_hash = solution, solution.source_hash
        self.definitions = {name: Question.of(definition(name)) for name in asked_of(solution)}
        self._finished = False
        runs = folder_of(solution)
        with _writing(runs):
            self.folder, self._lock = kept.new_folder(runs, "run-")
        try:
            with _writing(self.folder):
                for name in (VERDICTS, TRACES):
                    (self.folder / name).touch()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._finished:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def add(self, result: CheckResult | Trace) -> None:
        name = VERDICTS if isinstance(result, CheckResult) else TRACES
        if isinstance(result, CheckResult):
            result = result.model_copy(update={"repeat": ""})  # it names folders of this machine
        with _writing(self.folder), (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(line(result))

    def withdraw(self) -> None:
        """Deletes the evidence of the last run, if it is for the same sources: this run disproved it."""
        with contextlib.suppress(SpecError, OSError):
            before = latest(self.solution)
            if load(Evidence, before / EVIDENCE).source_hash == self.source_hash:
                (before / EVIDENCE).unlink()

    def finish(self, seed: int, environment: Mapping[str, str | None]) -> Recorded:
        """Makes this run the last finished one, and returns its evidence."""
        with _writing(self.folder):
            files = {name: (self.folder / name).read_bytes() for name in (VERDICTS, TRACES)}
            evidence = Evidence(
                schema_version=1, gdnspec=__version__, solution=self.solution.name,
                source_hash=self.source_hash, seed=seed,
                recorded=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                definitions=self.definitions, environment=dict(environment),
                files={name: sha256(data) for name, data in files.items()},
            )  # fmt: skip
            (self.folder / EVIDENCE).write_text(json.dumps(evidence.model_dump(mode="json"), indent=2) + "\n")
            with kept.partial(self.folder.parent / LATEST) as handle:
                os.write(handle, self.folder.name.encode())
        self._finished = True
        self._sweep()
        return Recorded(evidence, files)

    def _sweep(self) -> None:
        """Removes earlier runs and the remains of killed ones, but no run that is still going on."""
        runs = self.folder.parent
        kept.sweep(runs)
        for name in (EVIDENCE, VERDICTS, TRACES):  # of an earlier version
            (runs / name).unlink(missing_ok=True)
        for run in runs.glob("run-*"):
            with contextlib.suppress(OSError):
                if run != self.folder:
                    kept.remove_abandoned(run, partial(shutil.rmtree, ignore_errors=True))


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the evidence cannot be written: {error.strerror or error}; earlier evidence is unchanged"
        raise SpecError([Problem(folder, message, hint="GDNSPEC_CACHE=DIR writes it elsewhere")]) from None


def recorded(solution: Solution) -> Recorded:
    """The recorded evidence for a solution. Raises `SpecError` if there is none, or if it is for other sources, another
    definition or other workloads."""
    file = latest(solution) / EVIDENCE
    again = f"gdnspec submit {solution.name} records it again"
    if not file.exists():
        raise SpecError([Problem(file, "no evidence was recorded, or the run did not finish", hint=again)])
    evidence = load(Evidence, file)
    files = {name: read_text(file.parent / name).encode() for name in (VERDICTS, TRACES)}
    problems = [
        Problem(file.parent / name, f"has changed since {EVIDENCE} was written", hint=again)
        for name, data in files.items()
        if evidence.files.get(name) != sha256(data)
    ]
    if evidence.source_hash != solution.source_hash:
        problems.append(Problem(file, "is for other sources", "/source_hash", again))
    for name in sorted({*evidence.definitions, *asked_of(solution)}):
        if evidence.definitions.get(name) != Question.of(definition(name)):
            problems.append(
                Problem(file, "the definition or its workloads have changed", f"/definitions/{name}", again)
            )
    if problems:
        raise SpecError(problems)
    return Recorded(evidence, files)


def lines_of(model: type[M], data: bytes, file: Path) -> list[M]:
    """The models in the content of a JSONL file. Raises `SpecError` for the first invalid line."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError([Problem(file, f"not UTF-8 text: {error.reason} at byte {error.start}")]) from None
    found: list[M] = []
    for number, entry in numbered(text):
        if len(found) == MOST_LINES:
            raise SpecError([Problem(file, f"has more than {MOST_LINES} lines, more than any run writes")])
        if len(entry) > LONGEST_LINE:
            raise SpecError([Problem(file, larger_than(LONGEST_LINE), f"line {number}")])
        found.append(from_text(model, entry, file, number))
    return found


def doubled(verdicts: Iterable[CheckResult]) -> list[str]:
    """One sentence per verdict that occurs more than once. A run gives one verdict per workload."""
    counts = Counter((r.solution, r.definition, r.workload) for r in verdicts)
    return [
        f"{count} verdicts of {solution} on {name}/{workload}, but a run gives one"
        for (solution, name, workload), count in counts.items()
        if count > 1
    ]


def unproven(served: Mapping[str, Iterable[str]], verdicts: Iterable[CheckResult]) -> list[str]:
    """Why the verdicts do not prove the solution: failures outside of the badge suite, verdicts of another solution,
    and definitions on which nothing ran. `served`: definitions, by the solution or variant that serves them."""
    results = list(verdicts)
    found = [
        f"{r.status} on {r.definition}/{r.workload}{_of(r.solution)}: {(r.message.splitlines() or [''])[0][:300]}"
        for r in results
        if r.failed and r.suite != BADGE
    ]
    found += [f"a verdict of another solution, {r.solution!r}" for r in results if r.solution not in served]
    for solution, definitions in served.items():
        for name in definitions:
            mine = [r for r in results if (r.solution, r.definition) == (solution, name) and r.suite != BADGE]
            if not any(r.status == "PASSED" for r in mine) and not any(r.failed for r in mine):
                why = next((r.message for r in mine if r.message), "no verdict")
                found.append(f"nothing ran on {name}{_of(solution)}: {why}")
    return found


def _of(solution: str) -> str:
    """The variant that a message is about, in parentheses. A plain solution is clear from the bundle."""
    return f" ({solution})" if ":" in solution else ""


def line(model: Model) -> str:
    return json.dumps(model.model_dump(mode="json"), sort_keys=True) + "\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
