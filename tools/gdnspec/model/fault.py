"""What is known of a wrong or cheating solution: known_bad.json beside its code, or a fault in a table.

A fault is an edit of a right solution, its base: tests/known_bad/<family>/faults.json.
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
Line = Annotated[str, Field(max_length=500)]
Lines = Annotated[list[Line], Field(max_length=100)]


class Rejection(Model):
    """The fault, and how a judge that is worth its name answers it.

    `statuses` are those that its failures may have. `killed_by` names workloads each of which must reject it.
    `only_in`, where given, are the suites that it may fail in: it must fail there and pass everywhere else.
    `long_workloads`: it shows on long sequences alone, so they are run as well. `repeats`: it shows now and then, so
    each call is repeated so often.
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
    """Lines of a source that become others. `correct` stands in the base's file exactly once."""

    file: Annotated[str, Field(min_length=1, max_length=200)]
    correct: Annotated[Lines, Field(min_length=1)]
    wrong: Lines

    @field_validator("correct", "wrong")
    @classmethod
    def _one_line_each(cls, lines: list[str]) -> list[str]:
        for i, line in enumerate(lines):
            if "\n" in line or "\r" in line:
                raise PlacedError(f"/{i}", "holds a line break", "one line a string")
        return lines

    @model_validator(mode="after")
    def _changes(self) -> "Edit":
        if self.correct == self.wrong:
            raise PlacedError("/wrong", "is the correct text: the edit changes nothing")
        return self


class ManifestChange(Model):
    """What the manifest of a wrong solution has in place of its base's: in every entry, or as a whole."""

    deterministic: bool | None = None
    entry: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    call: Literal["out", "return"] | None = None
    prepare: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    supports: list[str] | None = None

    def entry_of(self, base: Entry | None) -> dict[str, Any]:
        """The entry of one definition; `base` is None where the base does not serve it."""
        changed = self.model_dump(include=set(Entry.model_fields), exclude_none=True)
        return {**(base.model_dump() if base else {}), **changed}


class Fault(Rejection):
    """One wrong solution: `base` with `edits`, serving `definitions`.

    `source` says where the fault comes from: a public report, or the trap that it stands for.
    """

    name: SolutionName
    base: SolutionName
    definitions: Annotated[list[Name], Field(min_length=1, max_length=100)]
    source: Text
    edits: Annotated[list[Edit], Field(min_length=1, max_length=20)]
    manifest: ManifestChange = ManifestChange()


class FaultTable(Model):
    """faults.json of one family."""

    most_bytes: ClassVar[int] = 4 << 20
    schema_version: Version1
    faults: Annotated[list[Fault], Field(max_length=5000)]
