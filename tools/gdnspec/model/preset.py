"""Presets: head configurations, by name. Loaded from definitions/<family>/presets.json."""

from typing import Annotated

from pydantic import Field, RootModel

from gdnspec.model.base import Model
from gdnspec.model.elements import Name, Stage, Text


class Preset(Model):
    """Values of const axes. `stages` limits it to definitions of these stages; without it, it serves all."""

    axes: dict[Name, Annotated[int, Field(ge=1, le=1 << 40)]]
    source: Text
    stages: list[Stage] | None = None


class Presets(RootModel[dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")], Preset]]):
    """{name: preset}."""
