"""What goes over the wire: the answers of the service, for whoever serves and whoever asks. Times are UTC, ISO 8601."""

from typing import Annotated, Literal

from pydantic import Field

from gdnspec.model.base import Model
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace

VERSION = 1  # of this interface; another one is another path
ROOT = f"/v{VERSION}"
TAR = "application/x-tar"
REQUEST = "Idempotency-Key"
LAST_EVENT = "Last-Event-ID"

State = Literal["queued", "running", "accepted", "refused", "invalid", "unverified", "cancelled", "lost"]
ENDED: dict[State, str] = {
    "accepted": "every check passed, and every claim of speed held",
    "refused": "it ran, and something failed; or its sources reach for what no kernel needs",
    "invalid": "it is no bundle, or not of the definitions that are here",
    "unverified": "this machine cannot tell: another GPU, nothing that runs here, or no isolation",
    "cancelled": "whoever sent it called it back",
    "lost": "its process was lost too often, or it took too long",
}
ErrorCode = Literal[
    "bad_request", "unauthorised", "not_found", "method", "conflict", "too_large", "too_slow", "media_type",
    "gone", "rate_limit", "queue_full", "too_many_streams", "too_many_uploads", "too_many_pages",
    "too_many_connections", "storage_full", "storage", "no_report", "ending", "internal",
]  # fmt: skip


class Error(Model):
    """What went wrong, for a program and for a person."""

    code: ErrorCode
    message: str


class ErrorBody(Model):
    """The body of every answer that is an error."""

    error: Error


class Service(Model):
    """What answers here. `slots`: jobs that run at a time, one to a GPU. `upload_limit`: bytes. `queue_limit`: jobs of
    one user that wait or run. `rate`: requests of one user a minute, `burst` of them at once."""

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
    """A bundle that was accepted for judging. `ahead`: jobs that wait before it; `done` of `total` workloads are
    judged in this `attempt`; `reasons`, one a line, why it ended as it did."""

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
    """A user's own, the newest first. `next`: what `before` is to be for those that follow; None at the end."""

    jobs: list[Job]
    next: str | None = None


class Result(Model):
    """What a job came to: all that was judged and measured until it ended."""

    job: Job
    verdicts: list[CheckResult]
    traces: list[Trace]


Kind = Literal["queued", "started", "opened", "finding", "warning", "workloads", "verdict", "trace", "again", "ended"]


class Event(Model):
    """One thing that happened to a job. `id` grows; `attempt` says in which. `text` is for people, `status` that of a
    verdict or a trace, or the state that the job ended in; `total`: workloads to come."""

    id: Annotated[int, Field(ge=1)]
    attempt: int
    kind: Kind
    at: str
    text: str = ""
    status: str = ""
    total: int | None = None
