"""Limits per user: requests per minute, streams of events, and operations in progress."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator


class Rate:
    """Per user, a bucket of `burst` requests that refills at `per_minute`. `clock` returns seconds."""

    def __init__(self, per_minute: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._clock = per_minute / 60, burst, clock
        self._left: dict[str, tuple[float, float]] = {}  # requests left, and the time of this count
        self._lock = threading.Lock()

    def wait(self, user: str) -> float:
        """Counts a request and returns 0 if it may be answered; otherwise returns the seconds until one may."""
        now = self._clock()
        with self._lock:
            left, then = self._left.get(user, (float(self._burst), now))
            left = min(float(self._burst), left + (now - then) * self._per_second)
            allowed = left >= 1
            self._left[user] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) / self._per_second


class Streams:
    """Counts the streams that each user follows."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, Counter[str]()

    @contextlib.contextmanager
    def one(self, user: str) -> Iterator[None]:
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1

    def full(self, user: str) -> bool:
        return self._open[user] >= self._most


class Full(Exception):
    """The user already has the most operations in progress."""


class InProgress:
    """Counts the operations that each user has in progress, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most, self._open = most, Counter[str]()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Raises `Full`."""
        with self._lock:
            if self._open[user] >= self.most:
                raise Full
            self._open[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[user] -= 1
