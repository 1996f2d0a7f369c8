"""The answers of the service, shared by server and client. Times are UTC, ISO 8601."""

from typing import Annotated, Literal

from pydantic import Field

from gdnspec.model.base import Model
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace

VERSION = 1  # of this interface; it is part of every path
ROOT = f"/v{VERSION}"
TAR = "application/x-tar"
REQUEST = "Idempotency-Key"
LAST_EVENT = "Last-Event-ID"

State = Literal["queued", "running", "accepted", "refused", "invalid", "unverified", "cancelled", "lost"]
ENDED: dict[State, str] = {
    "accepted": "every check passed, and every claimed time was verified",
    "refused": "a check failed, or the sources use something that no kernel needs",
    "invalid": "not a bundle, or for definitions that this server does not have",
    "unverified": "this machine cannot judge it: it has another GPU, cannot run the solution, or cannot isolate it",
    "cancelled": "the user cancelled it",
    "lost": "its process failed too often, or it took too long",
}
ErrorCode = Literal[
    "bad_request", "unauthorised", "not_found", "method", "conflict", "too_large", "too_slow", "media_type",
    "gone", "rate_limit", "queue_full", "too_many_streams", "too_many_uploads", "too_many_pages",
    "too_many_connections", "storage_full", "storage", "no_report", "ending", "internal",
]  # fmt: skip


class Error(Model):
    """What went wrong: `code` for a program, `message` for a person."""

    code: ErrorCode
    message: str


class ErrorBody(Model):
    """The body of every error."""

    error: Error


class Service(Model):
    """The server and its limits. `slots`: jobs that run at a time, one per GPU. `upload_limit`: bytes. `queue_limit`:
    jobs of one user that wait or run. `rate`: requests of one user per minute, `burst` of them at once."""

    service: Literal["gdnspec"] = "gdnspec"
    api: int
    gdnspec: str
    device: str
    slots: int
    upload_limit: int
    queue_limit: int
    rate: float
    burst: int


class Job(Model):
    """A bundle that the server took for judging. `ahead`: jobs that wait before it. `done` of `total` workloads are
    judged in this `attempt`. `reasons`: why it ended in this state, one line each."""

    id: str
    state: State
    solution: str = ""  # until the bundle is read
    sha256: str
    size: int
    created: str
    started: str | None = None
    ended: str | None = None
    attempt: int = 0
    ahead: int | None = None
    done: int = 0
    total: int = 0
    reasons: list[str] = []


class Jobs(Model):
    """A user's jobs, the newest first. `next`: the value of `before` that gives the next page; None at the end."""

    jobs: list[Job]
    next: str | None = None


class Result(Model):
    """The verdicts and traces of a job that has ended."""

    job: Job
    verdicts: list[CheckResult]
    traces: list[Trace]


Kind = Literal["queued", "started", "opened", "finding", "warning", "workloads", "verdict", "trace", "again", "ended"]


class Event(Model):
    """Something that happened to a job, in one `attempt`. `id` grows. `text` is for people. `status` is the status of a
    verdict or a trace, or the final state of the job. `total`: workloads to come."""

    id: Annotated[int, Field(ge=1)]
    attempt: int
    kind: Kind
    at: str
    text: str = ""
    status: str = ""
    total: int | None = None
