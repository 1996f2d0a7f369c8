"""A client of the server: send a bundle, follow its job, and get the result. Uses only the standard library."""

import contextlib
import http.client
import json
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from gdnspec import __version__
from gdnspec.model.base import Model
from gdnspec.model.errors import visible
from gdnspec.server import api

PATIENCE = 60.0  # seconds that a server may be unreachable or busy
SLOW = 30.0  # seconds without a byte
LARGEST = 512 << 20  # bytes in an answer
LOOPBACK = ("localhost", "127.0.0.1", "::1")
M = TypeVar("M", bound=Model)
# Errors of a connection that ends before the answer is complete.
CUT_OFF = (OSError, http.client.HTTPException)


class ServiceError(Exception):
    """An error in one line. `exit_code`: 2 if the request is invalid, 3 if the server cannot answer now."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(visible(message))
        self.exit_code = exit_code


class Away(Exception):
    """The server gave no answer, or asked to try again after `seconds`."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follows no redirect: the token is only for the server that the user named."""


class Client:
    """A connection of one user to one server. Its methods raise `ServiceError`. If the server is unreachable or busy,
    they try again for `patience` seconds. `slow`: seconds without a byte. Tests replace `clock` and `sleep`."""

    def __init__(
        self,
        url: str,
        token: str,
        warn: Callable[[str], None],
        patience: float = PATIENCE,
        slow: float = SLOW,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ServiceError(f"{url!r} is not a server's address, such as http://127.0.0.1:8642")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ServiceError(
                f"{url}: a token is not sent unencrypted: use https, or a tunnel (ssh -L 8642:127.0.0.1:8642 HOST)"
            )
        if not token.isascii() or not token.isprintable() or not token.strip():
            raise ServiceError("invalid token: it has characters that no token has")
        self.url, self._token, self._warn = url.rstrip("/"), token.strip(), warn
        self._patience, self._slow = patience, slow
        self._clock, self._sleep = clock, sleep
        proxies = [urllib.request.ProxyHandler({})] if parts.hostname in LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *proxies)

    def service(self) -> api.Service:
        """The server's version and limits. Raises `ServiceError` if it is not a gdnspec server of this version."""
        data = self._patiently(lambda: self._whole("GET", ""))
        try:
            found = json.loads(data)
            version = found["api"] if found["service"] == "gdnspec" else None
        except (ValueError, KeyError, TypeError):
            version = None
        if version is None:
            raise ServiceError(f"{self.url}: not a gdnspec server")
        if version != api.VERSION:
            theirs = found.get("gdnspec")
            raise ServiceError(
                f"{self.url}: the server's gdnspec {theirs} has version {version} of the interface, and this gdnspec "
                f"{__version__} has version {api.VERSION}: install the same gdnspec on both sides"
            )
        return self._read(api.Service, data)

    def jobs(self, most: int = 50) -> api.Jobs:
        """The user's jobs, the newest first."""
        return self._read(api.Jobs, self._patiently(lambda: self._whole("GET", f"/jobs?most={most}")))

    def submit(self, bundle: bytes) -> api.Job:
        """Sends a bundle and returns its job. If the bundle must be sent again, it is still one job."""
        headers = {"Content-Type": api.TAR, api.REQUEST: secrets.token_hex(16)}
        return self._read(api.Job, self._patiently(lambda: self._whole("POST", "/jobs", bundle, headers)))

    def job(self, name: str) -> api.Job:
        return self._read(api.Job, self._patiently(lambda: self._whole("GET", f"/jobs/{name}")))

    def cancel(self, name: str) -> api.Job:
        return self._read(api.Job, self._patiently(lambda: self._whole("DELETE", f"/jobs/{name}")))

    def result(self, name: str) -> api.Result:
        """The result of a job that has ended."""
        return self._read(api.Result, self._patiently(lambda: self._whole("GET", f"/jobs/{name}/result")))

    def events(self, name: str) -> Iterator[api.Event]:
        """The events of a job, until it ends. An interrupted stream continues after its last event."""
        after, until = 0, self._clock() + self._patience
        while True:
            try:
                for event in self._stream(name, after):
                    after, until = event.id, self._clock() + self._patience
                    yield event
                    if event.kind == "ended":
                        return
                raise Away("the stream of events ended before the job")
            except Away as away:
                self._wait(away, until)

    # --- requests -----------------------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[], bytes]) -> bytes:
        until = self._clock() + self._patience
        while True:
            try:
                return ask()
            except Away as away:
                self._wait(away, until)

    def _wait(self, away: Away, until: float) -> None:
        seconds = max(away.seconds, 1.0)
        if self._clock() + seconds > until:
            raise ServiceError(f"{self.url}: {away}; gave up after {self._patience:g} s", 3) from None
        self._warn(f"{self.url}: {away}; trying again in {seconds:g} s")
        self._sleep(seconds)

    def _whole(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        with self._open(method, path, body, headers or {}) as answer:
            try:
                data: bytes = answer.read(LARGEST + 1)
            except CUT_OFF as error:
                raise Away(f"the answer was cut off ({_why(error)})") from None
        if len(data) > LARGEST:
            raise ServiceError(f"{self.url}: the answer has more than {LARGEST >> 20} MiB")
        return data

    def _stream(self, name: str, after: int) -> Iterator[api.Event]:
        headers = {"Accept": "text/event-stream", **({api.LAST_EVENT: str(after)} if after else {})}
        with self._open("GET", f"/jobs/{name}/events", None, headers) as answer:
            while True:
                try:
                    line: bytes = answer.readline()
                except CUT_OFF as error:
                    raise Away(f"the stream of events was cut off ({_why(error)})") from None
                if not line:
                    return
                if line.startswith(b"data: "):
                    yield self._read(api.Event, line[6:])

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        request = urllib.request.Request(self.url + api.ROOT + path, body, headers, method=method)
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        request.add_unredirected_header("User-Agent", f"gdnspec/{__version__}")
        try:
            answer = self._opener.open(request, timeout=self._slow)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except ssl.SSLError as error:
            raise ServiceError(f"{self.url}: {_why(error)}") from None
        except CUT_OFF as error:
            if isinstance(getattr(error, "reason", None), ssl.SSLError):
                raise ServiceError(f"{self.url}: {_why(error)}") from None
            raise Away(_why(error)) from None
        with answer:
            yield answer

    def _refused(self, error: urllib.error.HTTPError) -> ServiceError | Away:
        try:
            said = api.ErrorBody.model_validate_json(error.read(1 << 16)).error.message
        except (*CUT_OFF, ValidationError):
            said = f"HTTP {error.code} without a message of gdnspec: is this the address of a gdnspec server?"
        if error.code in (429, 503, 507):
            after = error.headers.get("Retry-After", "")
            return Away(said, float(after) if after.isdigit() else 1.0)
        return ServiceError(f"{self.url}: {said}", 3 if error.code >= 500 else 2)

    def _read(self, model: type[M], data: bytes) -> M:
        try:
            return model.model_validate_json(data)
        except ValidationError:
            raise ServiceError(
                f"{self.url}: gdnspec {__version__} does not understand the answer: has the server another version?"
            ) from None


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
