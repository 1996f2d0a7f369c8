"""JSON lines over a Unix socket, with deadlines and a limit on their length."""

import json
import select
import socket
import time
from collections.abc import Callable
from typing import Any

MAX_LINE = 4 * 1024 * 1024


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelTimeout(Exception):
    """No complete line arrived before the deadline."""


class ProtocolError(Exception):
    """The received line is not a message."""


def _no_constants(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


class Channel:
    """One end of the channel. A message is a JSON object with an "op", and may carry descriptors. `clock`: seconds, for
    the deadline of `receive`."""

    def __init__(
        self, sock: socket.socket, accept_fds: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = sock
        self._accept_fds = accept_fds
        self._clock = clock
        self._buffer = b""
        self._fds: list[int] = []

    def send(self, message: dict[str, Any], fds: list[int] | None = None, timeout: float | None = None) -> None:
        """Sends a message. Raises `ChannelTimeout` if the other side does not read within `timeout` seconds."""
        data = json.dumps(message).encode() + b"\n"
        self._socket.settimeout(timeout)
        try:
            if fds:
                sent = socket.send_fds(self._socket, [data], fds)
                data = data[sent:]
            self._socket.sendall(data)
        except TimeoutError:
            raise ChannelTimeout from None
        except OSError:
            raise ChannelClosed from None

    def receive(
        self, timeout: float | None = None, alive: int | None = None, awake: float = 0.0
    ) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors.

        `alive` is a pidfd: once that process is gone, no message will come, even if others still hold the socket.
        `awake`: seconds of busy waiting, because a sleeping processor takes a tenth of a millisecond to wake.
        """
        started, left = self._clock(), timeout
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise ProtocolError(f"the line has more than {MAX_LINE >> 20} MiB")
            if left is not None and left < 0:
                raise ChannelTimeout  # if bytes keep trickling in, none of the waits below times out
            self._read(left, alive, started + awake)
            left = None if timeout is None else timeout - (self._clock() - started)
        line, self._buffer = self._buffer.split(b"\n", 1)
        fds, self._fds = self._fds, []
        try:
            message = json.loads(line.decode(), parse_constant=_no_constants)
        except (ValueError, RecursionError):
            raise ProtocolError(f"not JSON: {line[:80]!r}") from None
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise ProtocolError(f"not a message: {line[:80]!r}")
        return message, fds

    def _read(self, timeout: float | None, alive: int | None, awake_until: float) -> None:
        mine = self._socket.fileno()
        poll = select.poll()  # select() cannot handle descriptors from 1024 on
        for fd in [mine] if alive is None else [mine, alive]:
            poll.register(fd, select.POLLIN)
        found = poll.poll(0)
        while not found and self._clock() < awake_until:
            found = poll.poll(0)
        ready = [fd for fd, _ in found or poll.poll(None if timeout is None else max(0, timeout) * 1000)]
        if not ready:
            raise ChannelTimeout
        if mine not in ready:
            raise ChannelClosed
        try:
            if self._accept_fds:
                data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 4)
                self._fds += fds
            else:
                data = self._socket.recv(1 << 16)
        except OSError:
            raise ChannelClosed from None
        if not data:
            raise ChannelClosed
        self._buffer += data

    def close(self) -> None:
        self._socket.close()
