"""Adopts processes that a child leaves behind, and ends them with it.

A judging process must have no other children meanwhile: one started by another thread would count as an orphan.
"""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 30.0  # seconds: a killed process must run once more to end, which takes a while on a busy machine
_LISTS = Path(f"/proc/self/task/{os.getpid()}/children").exists()
_kept: set[int] = set()  # children that are not orphans


def adopt() -> None:
    """Makes orphans below this process its children from now on. Its existing children do not count as orphans."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
        _kept.update(children())


def keep(pid: int) -> None:
    """Marks this child as not an orphan."""
    _kept.add(pid)


def children() -> set[int]:
    """The direct children of this process."""
    mine = os.getpid()
    return {pid for pid, parent in _parents().items() if parent == mine}


def tree(root: int) -> set[int]:
    """A child of this process, its descendants, and orphans of these, as far as they can be seen while they come and
    go."""
    found, left = set(), {root, *(_listed(os.getpid()) - _kept)}
    while left:
        found |= left
        left = {child for pid in left for child in _listed(pid)} - found
    return found


def end_tree(root: int) -> None:
    """Kills the tree, repeatedly while it grows. Whoever started a process still has to wait for it."""
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
    """The children that the kernel lists for a process; empty if it has ended. Cheaper than reading all of /proc."""
    if not _LISTS:
        return {child for child, parent in _parents().items() if parent == pid}
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def _parents() -> dict[int, int]:
    """The parent of every visible process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # pid (name) state ppid ..: the name may contain spaces and brackets.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            found[int(folder.name)] = int(fields[1])
    return found


def end_orphans() -> None:
    """Kills and reaps every adopted child, and those that they leave behind."""
    deadline = time.monotonic() + PATIENCE
    while (left := children() - _kept) and time.monotonic() < deadline:
        killed = []
        for pid in left:  # kill all before waiting: each may start others until it ends
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
