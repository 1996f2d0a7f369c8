"""Limits the life of a process to that of the one that started it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ends this child when its parent is killed. The thread of the parent that started it must live as long as the
    child."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with(parent: int) -> None:
    """Like `die_with_parent`, for a child that knows its parent's id: the parent may have ended before this call."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
