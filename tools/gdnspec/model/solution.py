"""A solution's manifest: solutions/<name>/solution.json."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError, nearest
from gdnspec.model.expression import MAX_LENGTH, ExpressionError, parse

Language = Literal["python", "triton", "cuda"]
# `gdnspec new` writes these, and the author replaces them.
PLACEHOLDER_AUTHOR, PLACEHOLDER_TEXT = "you", "say here what sets it apart."
# Generous limits: gdnspec reads the manifests of strangers.
MOST_PACKAGES, LONGEST_PACKAGE = 50, 300
MOST_ENTRIES, MOST_CONDITIONS, MOST_AUTHORS = 200, 16, 100
MOST_VARIANTS, MOST_SETTINGS = 16, 32
# The traces of a variant are in traces/<variant>/, beside these folders.
KEPT_MANIFESTS, KEPT_PROOFS = "manifests", "carried"
ENTRY = r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]*\.(py|cu)::[A-Za-z_][A-Za-z0-9_]*$"

_VERSION = r"(>=|==|<)[0-9]+(\.[0-9]+)*(\.post[0-9]+)?"
PLAIN_REQUIREMENT = re.compile(rf"[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*({_VERSION}(,{_VERSION})*)?", re.ASCII)

# Only whole numbers: a word could replace a function that the audit reads by another one.
Setting = Annotated[int, Field(ge=-(2**31), lt=2**31)]
WORD = r"[a-z][a-z0-9_]*"
# NAME or NAME:VARIANT, as in commands, verdicts and traces.
SolutionName = Annotated[str, Field(pattern=rf"^{WORD}(:{WORD})?$", max_length=129)]


class Requires(Model):
    """What a machine must have. `compute_capability` is a minimum, such as "8.0". `packages` are at most 50 PEP 508
    lines of at most 300 characters."""

    device: Literal["any", "cpu", "cuda"]
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$", max_length=7)] | None = None
    packages: Annotated[list[Annotated[str, Field(max_length=LONGEST_PACKAGE)]], Field(max_length=MOST_PACKAGES)] = []

    @field_validator("packages")
    @classmethod
    def _requirements(cls, packages: list[str]) -> list[str]:
        lines = [(i, line) for i, line in enumerate(packages) if not PLAIN_REQUIREMENT.fullmatch(line)]
        if not lines:  # importing the library takes as long as reading all manifests
            return packages
        from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.version import InvalidVersion

        for i, line in lines:
            try:
                marker = Requirement(line).marker
                if marker is not None:
                    marker.evaluate()
            except (InvalidRequirement, InvalidVersion, UndefinedComparison, UndefinedEnvironmentName) as error:
                said = str(error).split("\n")[0]
                raise PlacedError(f"/{i}", f"{line!r} is not a valid requirement: {said}") from None
            except RecursionError:
                raise PlacedError(f"/{i}", f"{line!r} is not a valid requirement: nested too deeply") from None
        return packages


def _readable(conditions: list[str]) -> list[str]:
    for i, text in enumerate(conditions):
        try:
            parse(text)
        except ExpressionError as error:
            raise PlacedError(f"/{i}", str(error)) from None
    return conditions


Conditions = Annotated[
    list[Annotated[str, Field(max_length=MAX_LENGTH)]],
    Field(max_length=MOST_CONDITIONS),
    AfterValidator(_readable),
]


class Entry(Model):
    """How a solution serves one definition.

    `call` "out": the judge passes the outputs by keyword after the inputs, allocated and filled with NaN. "return": the
    function returns a tuple in the definition's order. `supports`: conditions over axes, switches, `<input>_dtype`,
    `device` and `contiguous`. `contiguous` is false if a workload leaves gaps in a tensor that is not a pool.
    """

    entry: Annotated[str, Field(pattern=ENTRY, max_length=300)]
    call: Literal["out", "return"]
    prepare: Annotated[str, Field(pattern=ENTRY, max_length=300)] | None = None
    supports: Conditions = []

    @property
    def file(self) -> str:
        return self.entry.split("::")[0]

    @property
    def function(self) -> str:
        return self.entry.split("::")[1]


class Variant(Model):
    """The same sources, built or called in another way. It counts as a solution, `NAME:VARIANT`.

    `defines`: macros for compiling every .cu file. `arguments`: keyword arguments for every Python function that serves
    an entry. `supports`: for a definition, the conditions that replace the solution's. `entries`: the definitions that
    it serves; without it, all that the solution serves. `batch_invariant`: replaces the solution's.
    """

    description: Text
    defines: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)], Setting],
        Field(max_length=MOST_SETTINGS),
    ] = {}
    arguments: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)],
            bool | Setting | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=200)],
        ],
        Field(max_length=MOST_SETTINGS),
    ] = {}
    supports: Annotated[dict[Name, Conditions], Field(max_length=MOST_ENTRIES)] = {}
    entries: Annotated[list[Name], Field(min_length=1, max_length=MOST_ENTRIES)] | None = None
    batch_invariant: bool | None = None

    @model_validator(mode="after")
    def _differs(self) -> "Variant":
        if not self.defines and not self.arguments:
            hint = "give it `defines` or `arguments`"
            raise PlacedError("", "the variant does not differ from the solution", hint)
        return self


class Manifest(Model):
    """What a solution is, what it needs, which definitions it serves, and in which variants.

    `deterministic`: two calls on the same content give the same bits. `batch_invariant`: a sequence or row has the same
    bits whatever else is in its batch. The judge holds a solution to both."""

    most_bytes: ClassVar[int] = 256 << 10
    schema_version: Version1
    name: Annotated[str, Field(pattern=rf"^{WORD}$", max_length=64)]
    language: Language
    authors: Annotated[list[Text], Field(min_length=1, max_length=MOST_AUTHORS)]
    license: Text
    description: Text
    sources: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=200)]
    requires: Requires
    deterministic: bool
    batch_invariant: bool = False
    entries: Annotated[dict[Name, Entry], Field(min_length=1, max_length=MOST_ENTRIES)]
    variants: Annotated[
        dict[Annotated[str, Field(pattern=rf"^{WORD}$", max_length=64)], Variant], Field(max_length=MOST_VARIANTS)
    ] = {}

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
        for name, variant in self.variants.items():
            if name in (KEPT_MANIFESTS, KEPT_PROOFS):
                raise PlacedError(f"/variants/{name}", f"the folder traces/{name}/ is reserved", "choose another name")
            self._hold(variant, f"/variants/{name}")
        return self

    def _hold(self, variant: Variant, at: str) -> None:
        """Raises `PlacedError` if a variant names something that the solution does not have."""
        served = list(self.entries) if variant.entries is None else variant.entries
        for i, name in enumerate(served):
            if name not in self.entries:
                hint = nearest(name, self.entries)
                raise PlacedError(f"{at}/entries/{i}", f"the solution does not serve {name!r}", hint)
        for name in variant.supports:
            if name not in served:
                message = f"the variant does not serve {name!r}"
                raise PlacedError(f"{at}/supports/{name}", message, nearest(name, served))
        cuda = [self.entries[name].file.endswith(".cu") for name in served]
        if variant.defines and not any(cuda):
            hint = "a Python entry takes `arguments`"
            raise PlacedError(f"{at}/defines", "no entry of the variant is in a .cu file", hint)
        if variant.arguments and any(cuda):
            hint = "a .cu file takes `defines`"
            raise PlacedError(f"{at}/arguments", "an entry in a .cu file takes no keyword arguments", hint)

    def as_variant(self, name: str) -> "Manifest":
        """The manifest with the description, entries and conditions of a variant."""
        variant = self.variants[name]
        entries = {
            served: entry.model_copy(update={"supports": variant.supports.get(served, entry.supports)})
            for served, entry in self.entries.items()
            if variant.entries is None or served in variant.entries
        }
        claims = self.batch_invariant if variant.batch_invariant is None else variant.batch_invariant
        own = {"description": variant.description, "entries": entries, "batch_invariant": claims}
        return self.model_copy(update=own)
