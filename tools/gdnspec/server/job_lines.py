"""The messages of a job's process to the server: lines of JSON on its stdout. The process knows no users, no tokens and
no database."""

from typing import Literal

from gdnspec.model.base import Model
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.server.api import State

LONGEST = 1 << 20  # bytes in a line
CRASHED = 70  # exit status: an error of the judge, not of the bundle


class Task(Model):
    """The request to a job's process, on its stdin. `bundle` and `into` are names in its working folder. `closed`:
    folders that the solution must not be able to read. `parent`: the server's process id."""

    bundle: str
    into: str
    device: str
    timeout: float
    minutes: float
    trusted: bool
    closed: list[str]
    parent: int


class Line(Model):
    """One message. The last one has `state` and `reasons`."""

    kind: Literal["opened", "finding", "warning", "workloads", "verdict", "trace", "end"]
    text: str = ""
    total: int | None = None
    verdict: CheckResult | None = None
    trace: Trace | None = None
    state: State | None = None
    reasons: list[str] = []
