"""The description of a wrong or cheating solution: known_bad.json beside its code, or a fault in a table.

A fault is an edit of a correct solution, its base: tests/known_bad/<family>/faults.json.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError
from gdnspec.model.result import Status
from gdnspec.model.solution import ENTRY, Entry
from gdnspec.model.workload import Suite

KNOWN_BAD_FILE, TABLE_FILE = "known_bad.json", "faults.json"
SolutionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
REPORT = r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/[1-9][0-9]*$"  # of a public issue or pull request
Reports = Annotated[list[Annotated[str, Field(pattern=REPORT, max_length=200)]], Field(max_length=10)]
Line = Annotated[str, Field(max_length=500)]
Lines = Annotated[list[Line], Field(max_length=100)]


def short(report: str) -> str:
    """OWNER/NAME#1, for the address of a report."""
    owner, name, _, number = report.removeprefix("https://github.com/").split("/")
    return f"{owner}/{name}#{number}"


class Rejection(Model):
    """The fault, and how the judge must reject it.

    `statuses`: the statuses that its failures may have. `killed_by`: workloads that must each reject it. `only_in`: if
    given, the solution must fail in these suites and pass in all others. `long_workloads`: the fault shows only on long
    sequences, so selftest runs them as well. `repeats`: the fault shows only sometimes, so each call is repeated this
    many times.
    """

    kind: Literal["wrong", "cheat"]
    fault: Text
    statuses: Annotated[list[Status], Field(min_length=1, max_length=20)]
    killed_by: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=200)] = []
    only_in: Annotated[list[Suite], Field(max_length=20)] = []
    long_workloads: bool = False
    repeats: Annotated[int, Field(ge=1, le=1000)] | None = None


class KnownBad(Rejection):
    """known_bad.json, in the folder of a wrong solution."""

    most_bytes: ClassVar[int] = 256 << 10
    schema_version: Version1


class Edit(Model):
    """An edit of a source: `wrong` replaces the lines `correct`, which must occur exactly once in the base's file."""

    file: Annotated[str, Field(min_length=1, max_length=200)]
    correct: Annotated[Lines, Field(min_length=1)]
    wrong: Lines

    @field_validator("correct", "wrong")
    @classmethod
    def _one_line_each(cls, lines: list[str]) -> list[str]:
        for i, line in enumerate(lines):
            if "\n" in line or "\r" in line:
                raise PlacedError(f"/{i}", "contains a line break", "write one string per line")
        return lines

    @model_validator(mode="after")
    def _changes(self) -> "Edit":
        if self.correct == self.wrong:
            raise PlacedError("/wrong", "the wrong text equals the correct text: the edit changes nothing")
        return self


class ManifestChange(Model):
    """The changes to the base's manifest: `deterministic` and `batch_invariant` for the manifest, all others for every
    entry."""

    deterministic: bool | None = None
    batch_invariant: bool | None = None
    entry: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    call: Literal["out", "return"] | None = None
    prepare: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    supports: list[str] | None = None

    def entry_of(self, base: Entry | None) -> dict[str, Any]:
        """The changed entry of one definition. `base` is None if the base does not serve it."""
        changed = self.model_dump(include=set(Entry.model_fields), exclude_none=True)
        return {**(base.model_dump() if base else {}), **changed}


class Fault(Rejection):
    """One wrong solution: `base` with `edits`, serving `definitions`.

    `source` says where the fault comes from: a public report, or the misunderstanding that it shows. `reports`: the
    addresses of public reports of this fault.
    """

    name: SolutionName
    base: SolutionName
    definitions: Annotated[list[Name], Field(min_length=1, max_length=100)]
    source: Text
    reports: Reports = []
    edits: Annotated[list[Edit], Field(min_length=1, max_length=20)]
    manifest: ManifestChange = ManifestChange()


class FaultTable(Model):
    """faults.json of one family."""

    most_bytes: ClassVar[int] = 4 << 20
    schema_version: Version1
    faults: Annotated[list[Fault], Field(max_length=5000)]
