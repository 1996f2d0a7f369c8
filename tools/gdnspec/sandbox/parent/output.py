"""Reads the output of a child, keeps its end, and makes it safe to show."""

import os
import select
import threading
from collections.abc import Callable

TAIL_BYTES = 16 * 1024


def printable(text: str, limit: int) -> str:
    """A text from a child, safe for a terminal and for JSON: no control characters, no lone surrogates, limited
    length."""
    clean = text.encode("utf-8", "replace").decode()
    clean = "".join(c for c in clean if c in "\n\t" or (c.isprintable()))
    return clean if len(clean) <= limit else clean[:limit] + " ..."


class Tail:
    """Reads everything that a child prints and keeps only the end, so that a gigabyte does no harm. `echo` gets all."""

    def __init__(self, echo: Callable[[bytes], object] | None = None) -> None:
        self._echo = echo
        self._kept = b""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, fd: int) -> None:
        self._kept = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(os.dup(fd), self._stop), daemon=True)
        self._thread.start()

    def _read(self, fd: int, stop: threading.Event) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        try:
            while True:
                ready = poll.poll(100)
                data = os.read(fd, 1 << 16) if ready else b""
                self._kept = (self._kept + data)[-TAIL_BYTES:]
                if data and self._echo is not None:
                    self._echo(data)
                if ready and not data:
                    return
                if stop.is_set() and not ready:
                    return  # a process that the child left behind still holds the other end
        finally:
            os.close(fd)

    def text(self, lines: int = 15) -> str:
        self.finish()
        return "\n".join(self._kept.decode(errors="replace").strip().split("\n")[-lines:])

    def finish(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2)
