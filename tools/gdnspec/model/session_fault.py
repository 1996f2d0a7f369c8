"""Wrong schedulers, and wrong kernels that a session rejects: tests/known_bad/<family>/session_faults.json."""

from typing import Annotated, ClassVar

from pydantic import Field

from gdnspec.model.base import Model, Version1
from gdnspec.model.elements import Name, Text
from gdnspec.model.fault import Edit, Reports, SolutionName
from gdnspec.model.result import Status

SESSION_FAULTS_FILE = "session_faults.json"
SCHEDULER, POOL_SCHEDULER = "scheduler", "pool_scheduler"  # the bases of wrong schedulers: the judge's own


class SessionFault(Model):
    """`base` with `edits`. The base is one of the judge's schedulers, or a solution in plain PyTorch whose entries for
    `definitions` become wrong; all edits are of one of its files, which has these entries. `source`: what a public
    report says, or the misunderstanding. `reports`: the addresses of the reports. `killed_by`: sessions that reject it.
    `survives`: it passes every smoke and conformance workload of its definitions. A wrong scheduler does, because no
    workload has one."""

    name: SolutionName
    base: SolutionName
    definitions: Annotated[list[Name], Field(max_length=20)] = []
    fault: Text
    source: Text
    reports: Reports = []
    edits: Annotated[list[Edit], Field(min_length=1, max_length=20)]
    statuses: Annotated[list[Status], Field(min_length=1, max_length=10)]
    killed_by: Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=100)]
    survives: bool

    @property
    def is_scheduler(self) -> bool:
        return self.base in (SCHEDULER, POOL_SCHEDULER)

    @property
    def pooled(self) -> bool | None:
        """Which sessions a wrong scheduler can serve: those on the pool, or the others; None: any."""
        return self.base == POOL_SCHEDULER if self.is_scheduler else None


class SessionFaultTable(Model):
    """session_faults.json of one family."""

    most_bytes: ClassVar[int] = 1 << 20
    schema_version: Version1
    faults: Annotated[list[SessionFault], Field(max_length=1000)]
