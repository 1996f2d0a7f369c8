"""Processes that a child leaves behind: adopted when it ends, and ended with it.

A process that judges has no other children meanwhile: one that another thread starts would be taken for an orphan.
"""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 30.0  # seconds: what is killed has to run once more to end, and on a busy machine that may take a while
_LISTS = Path(f"/proc/self/task/{os.getpid()}/children").exists()
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
    return {pid for pid, parent in _parents().items() if parent == mine}


def tree(root: int) -> set[int]:
    """A child of this process, all that descends from it, and the orphans that came here from below it, as far as they
    can be seen from outside while they come and go."""
    found, left = set(), {root, *(_listed(os.getpid()) - _kept)}
    while left:
        found |= left
        left = {child for pid in left for child in _listed(pid)} - found
    return found


def end_tree(root: int) -> None:
    """Kills it, again and again while it grows. What is dead stays to be waited for by whoever started it."""
    deadline = time.monotonic() + PATIENCE
    while (alive := {pid for pid in tree(root) if not _is_dead(pid)}) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _listed(pid: int) -> set[int]:
    """The children that the kernel lists for a process, none where it has ended. Cheaper than reading all of /proc."""
    if not _LISTS:
        return {child for child, parent in _parents().items() if parent == pid}
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def _parents() -> dict[int, int]:
    """Of every process that can be seen, by number."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # pid (name) state ppid ..: the name may hold spaces and brackets.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            found[int(folder.name)] = int(fields[1])
    return found


def end_orphans() -> None:
    """Kills and reaps every adopted child; those that it leaves behind in turn, too."""
    deadline = time.monotonic() + PATIENCE
    while (left := children() - _kept) and time.monotonic() < deadline:
        killed = []
        for pid in left:  # all before any is waited for: each may start others until it ends
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
