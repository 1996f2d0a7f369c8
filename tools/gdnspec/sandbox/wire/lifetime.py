"""How long a process of ours lives: no longer than whoever started it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """A parent that is killed leaves no child behind. For the child to call, of a parent whose thread that started it
    lives as long as the child is to."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with(parent: int) -> None:
    """The same for a child that was told who its parent is, which may have ended before this is called."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
