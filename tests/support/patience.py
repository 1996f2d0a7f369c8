"""How tests wait: for what has happened, never for a time in which it should have.

No verdict depends on `PATIENCE`. It only ends a test in which something hangs. It is therefore far longer than anything
takes, also where eight other processes use the same two cores, and a little shorter than pytest's own limit.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 800.0  # seconds


def until(found: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Asks again and again; what `found` returns once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError(f"nothing within {seconds:g} s")
