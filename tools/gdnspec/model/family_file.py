"""What a family of operators says of itself: definitions/<family>/family.json."""

import re
from typing import Annotated

from pydantic import Field, field_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.errors import PlacedError
from gdnspec.model.expression import ExpressionError, parse


class PresetPattern(Model):
    """Presets that stand in no file: a name that matches `pattern` whole binds an axis by each of its named groups, and
    those in `axes` to an expression of them. `defaults` are axes that a name may leave out."""

    pattern: Annotated[str, Field(max_length=1000)]
    axes: dict[Name, str | Annotated[int, Field(ge=1)]] = {}
    defaults: dict[Name, Annotated[int, Field(ge=1)]] = {}

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise PlacedError("", f"no regular expression: {error}") from None
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
        """The axes of a preset so called; None where this is no pattern of it."""
        found = re.fullmatch(self.pattern, name)
        if found is None:
            return None
        axes = self.defaults | {axis: int(text) for axis, text in found.groupdict().items() if text is not None}
        return axes | {axis: int(parse(str(text)).evaluate(axes)) for axis, text in self.axes.items()}


class FamilyFile(Model):
    """What a family says of itself.

    `regimes`: how inputs may be drawn, each in words. `vanishing`: those in which so little is left of a state that
    scaling by a power of two need not be exact. `strict`: those whose rows belong to the strict suite. `usual`: the
    definition that stands for a stage where a request log asks for another. `emulators`: lists of them, each by a name,
    in the order in which the lines of workloads hold their errors. `measured_as`: old family name, kept so that
    existing traces stay valid. `draws`: the generators that an input may name as `draw`, each in words; where there are
    any, every input that is drawn names one.
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

    @field_validator("emulators")
    @classmethod
    def _distinct(cls, lists: dict[str, list[str]]) -> dict[str, list[str]]:
        for name, emulators in lists.items():
            for i, emulator in enumerate(emulators):
                if emulator in emulators[:i]:
                    raise PlacedError(f"/{name}/{i}", f"{emulator!r} stands twice")
        return lists

    @field_validator("vanishing")
    @classmethod
    def _no_repeats(cls, names: list[str]) -> list[str]:
        return list(dict.fromkeys(names))
