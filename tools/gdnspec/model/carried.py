"""A proof that a change of sources did not change the machine code: solutions/<name>/traces/carried/<any name>.json."""

from typing import Annotated

from pydantic import Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.solution import SolutionName

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SameCode(Model):
    """A workload on which both states launch the same code. `code`: sha256 of everything that they launch."""

    definition: Name
    workload: Annotated[str, Field(max_length=200)]
    code: Sha256


class Carried(Model):
    """The proof for one solution or variant.

    `before`: the source hash that was measured. `after`: the source hash after the change. `compiler`: which compiler
    made the machine code, and for which target. `same`: the workloads on which the code is the same. `measured_as`: the
    name at the time of the measurement, if it was another one. `compared`: what was compared, if it is not the code
    that each call launches."""

    schema_version: Version1
    solution: SolutionName
    measured_as: SolutionName | None = None
    before: Sha256
    after: Sha256
    compiler: dict[Annotated[str, Field(max_length=40)], Annotated[str, Field(max_length=200)]]
    compared: Text | None = None
    same: Annotated[list[SameCode], Field(min_length=1, max_length=10_000)]
