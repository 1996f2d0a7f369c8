"""Limits on open connections: their number, in all and per address, and the time without a request.

A connection waits from its start, or from its last answer, until the headers of a request have arrived. A waiting
connection is closed to make room for a new one. A new one is refused only if every connection is being answered.
"""

import asyncio
import ipaddress
import math
from http import HTTPStatus
from typing import Any, Protocol, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gdnspec.server.api import Error, ErrorBody, ErrorCode
from gdnspec.server.http_errors import HEADERS

LINGER = 2.0  # seconds that a refused client has to read the answer
MOST_LINGERING = 64
LEAST_READ = 16 << 10  # bytes of an answer that a client must read within `seconds`
NETWORK = 64  # bits: a user of IPv6 usually has all addresses of such a network


class Guest(Protocol):
    """What `Connections` needs of a connection."""

    def make_room(self, why: str) -> None:
        """Ends the connection and leaves `Connections`."""

    @property
    def owed(self) -> bool:
        """Whether a part of an answer is not sent yet."""


class Connections:
    """The connections of a server: at most `most`, and at most `each` per address. Not thread-safe."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._address: dict[Guest, str] = {}
        self._of: dict[str, dict[Guest, None]] = {}
        self._waiting: dict[Guest, None] = {}  # the longest wait comes first
        self.lingering: set[Guest] = set()  # refused, and not counted any more

    def __len__(self) -> int:
        return len(self._address)

    def enter(self, guest: Guest, address: str) -> str | None:
        """Adds a connection, which then waits. Returns why it is refused, or None."""
        beside = self._of.get(address, {})
        for full, others, why in (
            (len(beside) >= self._each, beside, f"more than {self._each} connections from one address"),
            (len(self) >= self._most, self._address, f"more than {self._most} connections"),
        ):
            if full:
                oldest = next((g for g in self._waiting if g in others and not g.owed), None)
                if oldest is None:
                    return why
                oldest.make_room(why)
        self._address[guest] = address
        self._of.setdefault(address, {})[guest] = None
        self._waiting[guest] = None
        return None

    def wait(self, guest: Guest) -> None:
        """Marks it as waiting, as the newest one."""
        self._waiting.pop(guest, None)
        if guest in self._address:
            self._waiting[guest] = None

    def work(self, guest: Guest) -> None:
        """Marks it as being answered: it is not closed for a new one."""
        self._waiting.pop(guest, None)

    def leave(self, guest: Guest) -> None:
        self._waiting.pop(guest, None)
        address = self._address.pop(guest, None)
        if address is not None:
            beside = self._of[address]
            del beside[guest]
            if not beside:
                del self._of[address]


def neighbourhood(host: str) -> str:
    """The address by which a host is counted: for IPv6, its network."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, NETWORK), strict=False))


def protocol(connections: Connections, seconds: float) -> type["Connection"]:
    """The class of connections for uvicorn. `seconds`: in which a request must have arrived."""

    class Limited(Connection):
        pass

    Limited.guests, Limited.seconds = connections, seconds
    return Limited


class Connection(H11Protocol):
    """uvicorn's connection with limits. Every error has the documented form."""

    guests: Connections
    seconds: float

    _timer: asyncio.TimerHandle | None = None
    _answering = False
    done = False  # input is read and dropped, so that the client gets the answer
    _left = math.inf  # bytes of an answer that were not sent yet when the timer was set

    # --- events -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Patient(transport, self)))
        why = self.guests.enter(self, neighbourhood(self.client[0] if self.client else ""))
        if why is None:
            self._arm()
        else:
            self._refuse(503, "too_many_connections", f"{why}: try again in 5 s", (("retry-after", "5"),))

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.guests.lingering.discard(self)
        self.guests.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.done:
            super().data_received(data)
            self._settle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.done:
            return
        self._answering = False
        self.guests.wait(self)
        self._arm()
        self._settle()  # the next request may have arrived already

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.done:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", "not an HTTP/1.1 request, or its headers are too large")

    # --- limits -------------------------------------------------------------------------------------------------

    @property
    def owed(self) -> bool:
        return self.transport.get_write_buffer_size() > 0

    def make_room(self, why: str) -> None:
        self._end(503, "too_many_connections", f"{why}: try again in 5 s", (("retry-after", "5"),))

    def linger(self, seconds: float = LINGER) -> None:
        """Keeps reading for some seconds. Closing with unread input would discard the answer."""
        self.done = True
        self.guests.leave(self)
        self._disarm()
        self._unset_keepalive_if_required()
        if len(self.guests.lingering) >= MOST_LINGERING:
            self.transport.abort()
            return
        self.guests.lingering.add(self)
        self._timer = self.loop.call_later(seconds, self.transport.abort)
        self.flow.resume_reading()
        self.transport.write_eof()

    def _settle(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self._answering:
            self.guests.work(self)
            self._disarm()
        self._answering = answering

    def _arm(self) -> None:
        self._disarm()
        self._left = math.inf
        self._timer = self.loop.call_later(self.seconds, self._time_is_over)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > self._left - LEAST_READ:  # the client does not read its answer
            self.transport.abort()
        elif left:
            self._arm()
            self._left = left
        elif self._answering:
            self._disarm()
        elif self.transport.is_closing():
            self.transport.abort()
        else:
            self._end(408, "too_slow", f"no complete request within {self.seconds:g} s")

    def _end(self, status: int, code: ErrorCode, message: str, more: tuple[tuple[str, str], ...] = ()) -> None:
        """Ends a waiting connection. After an answer, and without a new request, it ends silently: the client might
        take a message for its next answer."""
        if self.cycle is not None and not (self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]):
            self.guests.leave(self)
            self.transport.close()
        else:
            self._refuse(status, code, message, more)

    def _refuse(self, status: int, code: ErrorCode, message: str, more: tuple[tuple[str, str], ...] = ()) -> None:
        """Sends an error if no answer has begun, and ends the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = ErrorBody(error=Error(code=code, message=message)).model_dump_json().encode()
            headers: Any = [
                ("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close"),
                *more, *HEADERS,
            ]  # fmt: skip
            begin = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
            for event in (begin, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.linger()
        else:
            self.transport.close()


class _Patient:
    """A transport that is closed at once only if the client has sent its whole request. A client that is still sending
    a bundle reads the answer afterwards."""

    def __init__(self, transport: asyncio.BaseTransport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        connection = self._connection
        if connection.conn.their_state is h11.SEND_BODY and connection.cycle.response_complete:
            if not connection.done:
                connection.linger(connection.seconds)
        else:
            self._transport.close()
