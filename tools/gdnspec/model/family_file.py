"""The description of a family of operators: definitions/<family>/family.json."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.session_line import States

# `keep`: a prefill that also keeps states on its way, `keep_absolute`: at edges counted from the first token of a
# request; `prefill_pool`: on states in slots; `draft`, `tree`: a verify that sets states aside; `settle`: one of them
# counts; `convolve_one`: the convolution of one token of each row, and so on.
CallKind = Literal[
    "prefill", "keep", "decode", "verify", "convolve", "convolve_one",
    "prefill_pool", "keep_absolute", "draft", "tree", "settle", "convolve_keep", "convolve_drafts",
    "convolve_tree",
]  # fmt: skip


class PresetPattern(Model):
    """Presets that are described by their name instead of a file. `pattern` must match the whole name; each of its
    named groups binds an axis. `axes` binds more axes to expressions of these. `defaults` are axes that a name may
    leave out."""

    pattern: Annotated[str, Field(max_length=1000)]
    axes: dict[Name, str | Annotated[int, Field(ge=1)]] = {}
    defaults: dict[Name, Annotated[int, Field(ge=1)]] = {}

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise PlacedError("", f"not a regular expression: {error}") from None
        return text

    @field_validator("axes")
    @classmethod
    def _readable(cls, axes: dict[str, str | int]) -> dict[str, str | int]:
        for name, text in axes.items():
            try:
                parse(str(text))
            except ExpressionError as error:
                raise PlacedError(f"/{name}", str(error)) from None
        return axes

    def bind(self, name: str) -> dict[str, int] | None:
        """The axes of the preset with this name; None if the name does not match the pattern."""
        found = re.fullmatch(self.pattern, name)
        if found is None:
            return None
        axes = self.defaults | {axis: int(text) for axis, text in found.groupdict().items() if text is not None}
        return axes | {axis: int(parse(str(text)).evaluate(axes)) for axis, text in self.axes.items()}


class FamilyFile(Model):
    """The description of a family.

    `regimes`: the ways to draw inputs, each with a description. `vanishing`: regimes in which states, or what the
    decays of a chunk leave of them, become so small that scaling by a power of two need not be exact: a term that
    vanishes may decide how a sum between two numbers is rounded. `strict`: regimes whose workloads belong to the
    strict suite. `usual`: for each stage, the definition that request logs use by default. `emulators`: named lists
    of emulators, in the order in which workloads store their errors. `measured_as`: the family name inside the hash
    of a definition, if traces were measured under another name than that of the folder. `draws`: the generators
    that an input may name as `draw`, each with a description; if there are any, every drawn input must name one.
    `sessions`: for each type of the states in a pool, the definition that serves each kind of call of a session; a
    family without it has no sessions.
    """

    schema_version: Version1
    description: Text
    regimes: Annotated[dict[Name, Text], Field(min_length=1)]
    draws: dict[Name, Text] = {}
    vanishing: list[Name] = []
    strict: list[Name] = []
    usual: dict[Name, Name] = {}
    emulators: dict[Name, Annotated[list[Name], Field(min_length=1)]] = {}
    preset_patterns: list[PresetPattern] = []
    measured_as: Name | None = None
    sessions: dict[States, dict[CallKind, Name]] = {}

    @field_validator("emulators")
    @classmethod
    def _distinct(cls, lists: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, emulators in lists.items():
            for i, emulator in enumerate(emulators):
                if emulator in emulators[:i]:
                    raise PlacedError(f"/{name}/{i}", f"{emulator!r} occurs twice: remove one")
        return lists

    @field_validator("vanishing")
    @classmethod
    def _no_repeats(cls, names: list[str]) -> list[str]:
        return list(dict.fromkeys(names))
