"""What is known of a wrong or cheating solution: tests/known_bad/<name>/known_bad.json."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.definition import Text
from gdnspec.model.result import Status
from gdnspec.model.workload import Suite


class KnownBad(Model):
    """The fault, and how a judge that is worth its name answers it.

    `statuses` are those that its failures may have. `killed_by` names workloads each of which must reject it.
    `only_in`, where given, are the suites that it may fail in: it must fail there and pass everywhere else.
    `long_workloads`: it shows on long sequences alone, so they are run as well. `repeats`: it shows now and then, so
    each call is repeated so often.
    """

    most_bytes: ClassVar[int] = 256 << 10
    schema_version: Version1
    kind: Literal["wrong", "cheat"]
    fault: Text
    statuses: Annotated[list[Status], Field(min_length=1, max_length=20)]
    killed_by: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=200)] = []
    only_in: Annotated[list[Suite], Field(max_length=20)] = []
    long_workloads: bool = False
    repeats: Annotated[int, Field(ge=1, le=1000)] | None = None
