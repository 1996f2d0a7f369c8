"""The HTTP interface: requests, their permissions and their answers."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gdnspec import __version__
from gdnspec.server import api
from gdnspec.server.database import Database
from gdnspec.server.http_errors import HEADERS, ApiError, Documented, add_handlers, answer, documented
from gdnspec.server.jobs import BundleDeleted, Jobs, OtherRequest, QueueFull
from gdnspec.server.limits import Full, InProgress, Rate, Streams
from gdnspec.server.pages import NoReport, Pages
from gdnspec.server.settings import Settings
from gdnspec.server.streaming import stream
from gdnspec.server.tokens import Tokens
from gdnspec.server.upload import received
from gdnspec.server.users import Reader, User

ONE_JOB = "two requests with the same key make one job"
Key = Annotated[str | None, Header(alias=api.REQUEST, max_length=100, description=ONE_JOB)]
After = Annotated[int, Header(alias=api.LAST_EVENT, ge=0, lt=1 << 63, description="the last event that you have seen")]
EVENTS: Documented = {
    200: {"content": {"text/event-stream": {}}, "description": "each event's data is an Event; the last one is `ended`"}
}
ERROR = {"$ref": "#/components/schemas/ErrorBody"}
RESULT: Documented = {200: {"model": api.Result}}
BUNDLE: Documented = {
    200: {"content": {api.TAR: {"schema": {"type": "string", "format": "binary"}}}, "description": "as you sent it"}
}
PAGE: Documented = {200: {"content": {"text/html": {}}, "description": "one self-contained page"}}
PATIENCE = 0.7  # seconds that a browser shows nothing
BEING_MADE = """<!doctype html><html lang="en"><title>gdnspec</title>
<p>The report is being made. This takes some seconds, and then it appears here.</p></html>"""

routes = APIRouter(prefix=api.ROOT, responses=documented(401, 429, 503))
pages = APIRouter()


def make_app(database: Database, settings: Settings) -> FastAPI:
    """The application, without the slots that run jobs. `/openapi.json` describes it."""
    app = FastAPI(
        title="gdnspec serve", version=__version__, docs_url=None, redoc_url=None,
        description="Bundles of `gdnspec submit` wait in a queue, and are judged as `gdnspec intake` does.",
    )  # fmt: skip
    app.state.settings = settings
    app.state.tokens = Tokens(database)
    app.state.jobs = Jobs(database, settings.queue_limit)
    app.state.pages = Pages(database, settings)
    app.state.rate = Rate(settings.rate, settings.burst)
    app.state.streams = Streams(settings.streams)
    app.state.uploads = InProgress(settings.uploads)
    app.state.making = InProgress(settings.pages)
    app.include_router(routes)
    app.include_router(pages)
    add_handlers(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_middleware(_Headers)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document without its own form of errors: here an invalid request is answered with 400."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for operation in (operation for path in found["paths"].values() for operation in path.values()):
            operation["responses"].pop("422", None)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    answer["content"] = {"application/json": {"schema": ERROR}}  # also if the answer is a page
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        app.openapi_schema = found
    return app.openapi_schema


class _Headers:
    """Adds `HEADERS` to every answer, and answers requests that still wait when the server ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            if begun:
                raise
            again = {"Retry-After": "5", "Connection": "close"}
            await answer(503, "ending", "the server is ending: send the request again", again)(scope, receive, sent)


@pages.get(api.ROOT, tags=["service"])
def service(request: Request) -> api.Service:
    """The server's version, device and limits. Needs no token."""
    settings: Settings = request.app.state.settings
    return api.Service(
        api=api.VERSION, gdnspec=__version__, device=settings.device, slots=len(settings.devices), burst=settings.burst,
        upload_limit=settings.upload_limit, queue_limit=settings.queue_limit, rate=settings.rate,
    )  # fmt: skip


SENT = {"requestBody": {"required": True, "content": {api.TAR: {"schema": {"type": "string", "format": "binary"}}}}}


@routes.post(
    "/jobs", tags=["jobs"], status_code=status.HTTP_201_CREATED, openapi_extra=SENT,
    responses={
        **documented(400, 408, 409, 413, 415, 507),
        200: {"model": api.Job, "description": "the job of an earlier request with this key"},
    },
)  # fmt: skip
async def submit(request: Request, response: Response, user: User, key: Key = None) -> api.Job:
    """Send a bundle that `gdnspec submit` packed. When this is answered, the job is on disk."""
    jobs: Jobs = request.app.state.jobs
    uploads: InProgress = request.app.state.uploads
    try:
        with uploads.one(user):
            upload = await received(request, request.app.state.settings)
    except Full:
        message = f"you are sending {uploads.most} bundles, the most at a time: wait until one is complete"
        raise ApiError(429, "too_many_uploads", message, {"Retry-After": "5"}) from None
    try:
        job, new = await run_in_threadpool(jobs.accept, user, *upload, key)
    except QueueFull:
        limit = request.app.state.settings.queue_limit
        message = f"{limit} of your jobs wait or run, the most per user: wait until one ends"
        raise ApiError(429, "queue_full", message, {"Retry-After": "10"}) from None
    except OtherRequest:
        raise ApiError(409, "conflict", f"another bundle was sent with this {api.REQUEST}: use a new key") from None
    finally:
        upload.file.close()
    response.headers["Location"] = f"{api.ROOT}/jobs/{job.id}"
    if not new:
        response.status_code = status.HTTP_200_OK
    return job


@routes.get("/jobs", tags=["jobs"], responses=documented(400))
def jobs(
    request: Request, user: User, before: Annotated[str | None, Query(max_length=64)] = None,
    most: Annotated[int, Query(ge=1, le=200)] = 50,
) -> api.Jobs:  # fmt: skip
    """Your jobs, the newest first."""
    found = request.app.state.jobs.listed(user, before, most)
    return api.Jobs(jobs=found, next=found[-1].id if len(found) == most else None)


def _mine(request: Request, user: str, name: str) -> api.Job:
    """The user's job. For another user's job the answer is the same as for a job that does not exist."""
    found: api.Job | None = request.app.state.jobs.get(user, name)
    if found is None:
        raise ApiError(404, "not_found", f"you have no job {name[:64]!r}")
    return found


@routes.get("/jobs/{name}", tags=["jobs"], responses=documented(404))
def job(request: Request, user: User, name: str) -> api.Job:
    """One of your jobs."""
    return _mine(request, user, name)


@routes.delete("/jobs/{name}", tags=["jobs"], status_code=202, responses=documented(404, 409, 507))
def cancel(request: Request, user: User, name: str) -> api.Job:
    """Cancel a job. A running job ends within seconds; its `state` then changes."""
    before = _mine(request, user, name)
    if before.ended is not None and before.state != "cancelled":
        raise ApiError(409, "conflict", f"the job has already ended: {before.state}")
    found: api.Job = request.app.state.jobs.cancel(user, name)
    return found


@routes.get(
    "/jobs/{name}/events", tags=["jobs"], response_class=StreamingResponse, responses={**documented(400, 404), **EVENTS}
)
def events(request: Request, user: User, name: str, after: After = 0) -> StreamingResponse:
    """The events of a job as server-sent events: all, or those after the last one that you have seen."""
    _mine(request, user, name)
    streams: Streams = request.app.state.streams
    if streams.full(user):
        raise ApiError(
            429, "too_many_streams", "you follow too many jobs at a time: close a stream", {"Retry-After": "5"}
        )
    shown = stream(request.app.state.jobs, streams, user, name, after)
    return StreamingResponse(shown, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@routes.get("/jobs/{name}/result", tags=["jobs"], responses={**documented(404, 409), **RESULT})
def result(request: Request, user: User, name: str) -> Response:
    """All verdicts and traces of a job that has ended."""
    found = _ended(request, user, name)
    verdicts, traces = request.app.state.jobs.result(name)
    # The database holds JSON of the same models, so it is not parsed and serialised again.
    body = f'{{"job":{found.model_dump_json()},"verdicts":{verdicts},"traces":{traces}}}'
    return Response(body, media_type="application/json")


@routes.get("/jobs/{name}/bundle", tags=["jobs"], response_class=Response, responses={**documented(404, 410), **BUNDLE})
def bundle(request: Request, user: User, name: str) -> Response:
    """The bundle of one of your jobs, byte for byte as you sent it."""
    job = _mine(request, user, name)
    with _explained(request):
        data = request.app.state.jobs.bundle(job.id)
    return Response(data, 200, {"Content-Disposition": f'attachment; filename="{job.id}.bundle.tar"'}, api.TAR)


@routes.get(
    "/jobs/{name}/report", tags=["jobs"], response_class=HTMLResponse,
    responses={**documented(404, 409, 410, 501, 507), **PAGE},
)  # fmt: skip
def job_report(request: Request, user: Reader, name: str) -> HTMLResponse:
    """The report of one job. A browser can send the token as a password."""
    _ended(request, user, name)
    with _explained(request), _in_turn(request, user):
        return HTMLResponse(request.app.state.pages.of_job(name))


@pages.get(
    "/", tags=["report"], response_class=HTMLResponse,
    responses={**documented(401, 429, 501, 503, 507), **PAGE, 202: {"description": "the page is being made"}},
)  # fmt: skip
def report(request: Request, user: Reader) -> HTMLResponse:
    """The report of all accepted solutions and the project's own. A browser can send the token as a password, and gets
    a page that asks again while the report is being made. Other programs wait for the report."""
    with _explained(request), _in_turn(request, user):
        made: Pages = request.app.state.pages
        if "text/html" not in request.headers.get("accept", ""):
            return HTMLResponse(made.of_all())
        page = made.of_all_within(PATIENCE)
    if page is None:
        return HTMLResponse(BEING_MADE, 202, {"Refresh": "2"})
    return HTMLResponse(page)


@contextlib.contextmanager
def _in_turn(request: Request, user: str) -> Iterator[None]:
    """Limits the pages that a user waits for. Pages are made one at a time, so one user could block all threads."""
    making: InProgress = request.app.state.making
    try:
        with making.one(user):
            yield
    except Full:
        message = f"you are waiting for {making.most} pages, the most at a time: wait until one is complete"
        raise ApiError(429, "too_many_pages", message, {"Retry-After": "5"}) from None


def _ended(request: Request, user: str, name: str) -> api.Job:
    found = _mine(request, user, name)
    if found.ended is None:
        raise ApiError(409, "conflict", f"the job has not ended: {found.state}")
    return found


@contextlib.contextmanager
def _explained(request: Request) -> Iterator[None]:
    try:
        yield
    except BundleDeleted:
        days = request.app.state.settings.keep_bundles
        message = f"the bundle was deleted: this server keeps bundles for {days:g} days; its result is kept"
        raise ApiError(410, "gone", message) from None
    except NoReport as error:
        raise ApiError(501, "no_report", str(error)) from None
