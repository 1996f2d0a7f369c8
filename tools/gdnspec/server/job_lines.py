"""What the process of a job says to the server: a line of JSON each, on its stdout. It knows nothing of users, tokens
or the database."""

from typing import Literal

from gdnspec.model.base import Model
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.server.api import State

LONGEST = 1 << 20  # bytes of a line
CRASHED = 70  # exit status: an error of this program itself


class Task(Model):
    """What a job's process is told, on its stdin. `bundle` and `into` are names in its working folder; `closed`:
    folders that the solution must not be able to read."""

    bundle: str
    into: str
    device: str
    timeout: float
    minutes: float
    trusted: bool
    closed: list[str]
    parent: int


class Line(Model):
    """One thing that has happened; the last one says `state`, and why."""

    kind: Literal["opened", "finding", "warning", "workloads", "verdict", "trace", "end"]
    text: str = ""
    total: int | None = None
    verdict: CheckResult | None = None
    trace: Trace | None = None
    state: State | None = None
    reasons: list[str] = []
