"""A solution's manifest: solutions/<name>/solution.json."""

from typing import Annotated, ClassVar, Literal

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion
from pydantic import Field, field_validator, model_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError
from gdnspec.model.expression import MAX_LENGTH, ExpressionError, parse

Language = Literal["python", "triton", "cuda"]
# As `gdnspec new` writes them, for their author to replace.
PLACEHOLDER_AUTHOR, PLACEHOLDER_TEXT = "you", "say here what sets it apart."
# Far more than anybody needs: a stranger's manifest is read before anything else of it is known.
MOST_PACKAGES, LONGEST_PACKAGE = 50, 300
MOST_ENTRIES, MOST_CONDITIONS, MOST_AUTHORS = 200, 16, 100
ENTRY = r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]*\.(py|cu)::[A-Za-z_][A-Za-z0-9_]*$"


class Requires(Model):
    """What a machine must have. `compute_capability` is a minimum, such as "8.0"; packages are PEP 508 lines, at most
    50 of 300 characters."""

    device: Literal["any", "cpu", "cuda"]
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$", max_length=7)] | None = None
    packages: Annotated[list[Annotated[str, Field(max_length=LONGEST_PACKAGE)]], Field(max_length=MOST_PACKAGES)] = []

    @field_validator("packages")
    @classmethod
    def _requirements(cls, packages: list[str]) -> list[str]:
        for i, line in enumerate(packages):
            try:
                marker = Requirement(line).marker
                if marker is not None:
                    marker.evaluate()
            except (InvalidRequirement, InvalidVersion, UndefinedComparison, UndefinedEnvironmentName) as error:
                said = str(error).split("\n")[0]
                raise PlacedError(f"/{i}", f"{line!r} is no requirement: {said}") from None
            except RecursionError:
                raise PlacedError(f"/{i}", f"{line!r} is no requirement: nested too deeply") from None
        return packages


class Entry(Model):
    """How one definition is served.

    `call` "out": the outputs, allocated and filled with NaN, follow the inputs by keyword. "return": the function
    returns a tuple in the definition's order. `supports`: conditions over axes, switches, `<input>_dtype`, `device` and
    `contiguous`, which is false where a workload leaves gaps in a tensor that is no pool.
    """

    entry: Annotated[str, Field(pattern=ENTRY, max_length=300)]
    call: Literal["out", "return"]
    prepare: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    supports: Annotated[list[Annotated[str, Field(max_length=MAX_LENGTH)]], Field(max_length=MOST_CONDITIONS)] = []

    @field_validator("supports")
    @classmethod
    def _readable(cls, conditions: list[str]) -> list[str]:
        for i, text in enumerate(conditions):
            try:
                parse(text)
            except ExpressionError as error:
                raise PlacedError(f"/{i}", str(error)) from None
        return conditions

    @property
    def file(self) -> str:
        return self.entry.split("::")[0]

    @property
    def function(self) -> str:
        return self.entry.split("::")[1]


class Manifest(Model):
    """What a solution is, what it needs and which definitions it serves."""

    most_bytes: ClassVar[int] = 256 << 10
    schema_version: Version1
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
    language: Language
    authors: Annotated[list[Text], Field(min_length=1, max_length=MOST_AUTHORS)]
    license: Text
    description: Text
    sources: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=200)]
    requires: Requires
    deterministic: bool
    entries: Annotated[dict[Name, Entry], Field(min_length=1, max_length=MOST_ENTRIES)]

    @model_validator(mode="after")
    def _inside(self) -> "Manifest":
        for i, source in enumerate(self.sources):
            if source.startswith("/") or ".." in source.split("/") or "\\" in source:
                raise PlacedError(f"/sources/{i}", f"{source!r} is not a path inside the solution's folder")
        for name, entry in self.entries.items():
            for key in ("entry", "prepare"):
                spec = getattr(entry, key)
                if spec is not None and spec.split("::")[0] not in self.sources:
                    raise PlacedError(f"/entries/{name}/{key}", f"{spec.split('::')[0]!r} is not among the sources")
            if entry.file.endswith(".cu") and (entry.call != "out" or entry.prepare):
                raise PlacedError(f"/entries/{name}/call", 'a .cu entry is called with "out" and has no prepare')
        return self
