"""Errors of the HTTP interface, all in one form."""

import errno
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gdnspec.model.errors import visible
from gdnspec.server.api import Error, ErrorBody, ErrorCode
from gdnspec.server.database import StorageError
from gdnspec.server.room import for_want_of_room
from gdnspec.server.tell import tell

# Sent with every answer: no caching, no frames, no guessing of the content type.
HEADERS = (
    (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)  # fmt: skip
CODES: dict[int, ErrorCode] = {404: "not_found", 405: "method"}
MEANING = {
    400: "the request is invalid", 401: "the token is missing, wrong, expired or revoked",
    404: "you have no such job", 409: "not possible in the current state", 408: "the bundle arrived too slowly",
    410: "the bundle was deleted", 413: "the bundle is too large", 415: "a bundle must be sent as application/x-tar",
    429: "too many requests or too many jobs: try again after the seconds in Retry-After",
    501: "no report can be made", 503: "the database cannot be used now, or the server has too many connections",
    507: "the disk is full",
}  # fmt: skip


Documented = dict[int | str, dict[str, Any]]  # answers, for OpenAPI


class ApiError(Exception):
    """An error to answer a request with."""

    def __init__(self, status: int, code: ErrorCode, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def documented(*statuses: int) -> Documented:
    """The errors that an operation may answer with, for OpenAPI."""
    found: Documented = {}
    for status in statuses:
        found[status] = {"model": ErrorBody, "description": MEANING[status]}
        if status == 429:
            seconds = {"description": "seconds to wait before the next request", "schema": {"type": "integer"}}
            found[status]["headers"] = {"Retry-After": seconds}
    return found


def answer(status: int, code: ErrorCode, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    body = ErrorBody(error=Error(code=code, message=visible(message)))
    return JSONResponse(body.model_dump(), status, headers)


def add_handlers(app: FastAPI) -> None:
    """Makes every error answer an `ErrorBody`."""

    @app.exception_handler(ApiError)
    def _said(_: Request, error: ApiError) -> JSONResponse:
        return answer(error.status, error.code, error.message, error.headers)

    @app.exception_handler(StorageError)
    def _storage(_: Request, error: StorageError) -> JSONResponse:
        # Without the path of the file, which users need not know.
        why = "the disk of the server is full; nothing was changed" if error.full else "the database cannot be used now"
        return answer(
            507 if error.full else 503, "storage_full" if error.full else "storage", why, {"Retry-After": "10"}
        )

    @app.exception_handler(OSError)
    def _system(request: Request, error: OSError) -> JSONResponse:
        """A full disk gives the same answer, wherever it is noticed."""
        if for_want_of_room(error):
            return _storage(request, StorageError("", full=True))
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            why = "the server has reached its limit of open files and connections"
            return answer(503, "too_many_connections", why, {"Retry-After": "10"})
        tell("".join(traceback.format_exception(error)))
        return _unexpected(request, error)

    @app.exception_handler(RequestValidationError)
    def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return answer(400, "bad_request", f"{'/'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    def _http(_: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, CODES.get(error.status_code, "bad_request"), str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def _unexpected(_: Request, error: Exception) -> JSONResponse:
        return answer(500, "internal", f"the server failed ({type(error).__name__}); see its log")
