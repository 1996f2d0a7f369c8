"""A proof that a change of sources left what a GPU does as it was: solutions/<name>/traces/carried/<any name>.json."""

from typing import Annotated

from pydantic import Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.solution import SolutionName

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SameCode(Model):
    """A workload on which both states launch the same; `code`: sha256 over all that they launch."""

    definition: Name
    workload: Annotated[str, Field(max_length=200)]
    code: Sha256


class Carried(Model):
    """Of a solution or a variant: the source hash that was measured and the one after the change, what the machine code
    was made by and for, and where it is the same.

    `measured_as`: the name that it was measured under, where that was another. `compared`: what was held to be equal,
    where it is not what each call launches."""

    schema_version: Version1
    solution: SolutionName
    measured_as: SolutionName | None = None
    before: Sha256
    after: Sha256
    compiler: dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=200)]]
    compared: Text | None = None
    same: Annotated[list[SameCode], Field(min_length=1, max_length=10_000)]
