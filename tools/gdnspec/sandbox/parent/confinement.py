"""Limits for a child of an unknown author, and a watch that ends it if it exceeds limits that the kernel lacks."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnspec.sandbox.parent import descendants

GIB = 1 << 30
PERIOD = {"cpu": 0.03, "cuda": 0.25}  # seconds between checks; on a GPU they must not disturb the judge's clock
PAGE = os.sysconf("SC_PAGE_SIZE")
PRIVATE, SHARED = ("RssAnon", "VmSwap"), "RssShmem"


def _memory() -> int:
    """Three quarters of the machine's memory, at most 16 GiB."""
    return min(16 * GIB, os.sysconf("SC_PHYS_PAGES") * PAGE * 3 // 4)


class NotIsolated(Exception):
    """The kernel lacks a protection for confined children. No code of the solution has run."""


@dataclass(frozen=True)
class Confinement:
    """`memory`: bytes of all its processes together, 0 for a default. `processes`: their number. `disk`: bytes in its
    scratch folder. `seconds`: wall time of a child. `closed`: folders that it must not read. `trusted`: run it even if
    a protection is missing."""

    memory: int = 0
    processes: int = 256
    disk: int = GIB
    seconds: float = 3600.0
    closed: tuple[Path, ...] = ()
    trusted: bool = False

    @property
    def memory_limit(self) -> int:
        return self.memory or _memory()

    def to_json(self) -> dict[str, Any]:
        """The limits that the child sets itself through the kernel."""
        return {
            "memory": self.memory_limit, "file": self.disk, "disk": self.disk, "closed": [str(p) for p in self.closed],
        }  # fmt: skip


class Watch:
    """Watches a child's processes until it is stopped. `ended`: why it killed them; "" if it did not."""

    def __init__(self, pid: int, scratch: Path, device: str, limits: Confinement) -> None:
        self.ended = ""
        self._pid, self._scratch, self._limits = pid, scratch, limits
        self._period = PERIOD[device]
        self._until = time.monotonic() + limits.seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            tree = descendants.tree(self._pid)
            why = self._over(tree)
            if why:
                self.ended = why
                descendants.end_tree(self._pid)
                return

    def _over(self, tree: set[int]) -> str:
        limits = self._limits
        if len(tree) > limits.processes:
            return f"more than {limits.processes} processes"
        if time.monotonic() > self._until:
            return f"more than {limits.seconds:g} s"
        if _used(tree) > limits.memory_limit:
            return f"more than {_shown(limits.memory_limit)} of memory"
        if _size(self._scratch, limits.disk) > limits.disk:
            return f"more than {_shown(limits.disk)} on disk"
        return ""


def _shown(nbytes: int) -> str:
    return f"{nbytes / GIB:.3g} GiB"


def _used(tree: set[int]) -> int:
    """Bytes that the processes use: their own pages, the largest share of common ones, and open files without a name,
    which are in memory or on disk."""
    own, shared = 0, 0
    unnamed: dict[tuple[int, int], int] = {}
    for pid in tree:
        status = _status(pid)
        own += sum(status.get(key, 0) for key in PRIVATE)
        shared = max(shared, status.get(SHARED, 0))
        unnamed |= _unnamed(pid)
    return own + shared + sum(unnamed.values())


def _status(pid: int) -> dict[str, int]:
    """Memory figures of a process, in bytes."""
    return _or_nothing(lambda: {
        key: int(rest.split()[0]) * 1024
        for key, _, rest in (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if key in (*PRIVATE, SHARED)
    })  # fmt: skip


def _unnamed(pid: int) -> dict[tuple[int, int], int]:
    """Open files without a name, and the bytes of each, by device and number."""
    found = {}
    for fd in _or_nothing(lambda: dict.fromkeys(Path(f"/proc/{pid}/fd").iterdir())):
        try:
            status = fd.stat()
        except OSError:
            continue
        if status.st_nlink == 0:
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found


def _or_nothing(read: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """The result, or {} if the process has ended meanwhile."""
    try:
        return read()
    except (OSError, ValueError):
        return {}


def _size(folder: Path, most: int) -> int:
    """Bytes of the files below a folder, counted until they exceed `most`. A file system of the child itself is not
    visible here, and has its own limit."""
    total, left = 0, [str(folder)]
    while left and total <= most:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:
            continue
    return total
