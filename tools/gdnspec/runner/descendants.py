"""Processes that a child leaves behind: adopted when it ends, and ended with it.

A process that judges has no other children meanwhile: one that another thread starts would be taken for an orphan.
"""

import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 2.0
_kept: set[int] = set()  # children that are somebody's, and no orphans


def adopt() -> None:
    """Orphans below this process become its children from now on. Those that it has already are no orphans."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        _kept.update(children())


def keep(pid: int) -> None:
    """This child is no orphan."""
    _kept.add(pid)


def children() -> set[int]:
    """The direct children of this process."""
    mine = os.getpid()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # pid (name) state ppid ..: the name may hold spaces and brackets.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == mine:
                found.add(int(folder.name))
    return found


def end_orphans() -> None:
    """Kills and reaps every adopted child; those that it leaves behind in turn, too."""
    deadline = time.monotonic() + PATIENCE
    while (left := children() - _kept) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                continue
