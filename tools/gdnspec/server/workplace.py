"""The folder of what is needed while it runs: jobs and pages that are being made, a folder each.

A folder is locked as long as somebody uses it. The lock ends with the process that holds it, however it ends, so
whatever is not locked was left behind by a killed server, and is removed.
"""

import contextlib
import fcntl
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gdnspec.server.job_process import run_beside
from gdnspec.server.tell import tell

REMOVAL = 600.0  # seconds
GONE = "gone-"  # what is being removed


class Workplace:
    """Servers on the same data share one. All of it raises `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[tuple[Path, int]]:
        """A new folder of that name, empty, and the descriptor that locks it. Removed at the end."""
        path = self._folder / name
        self._discard(path)  # a copy of the database was restored, and counts attempts anew
        with self._gate():
            path.mkdir()
            try:
                lock = _lock(path)
            except BaseException:
                path.rmdir()
                raise
        assert lock is not None, "the gate keeps everybody else away"
        try:
            yield path, lock
        finally:
            try:
                remove(path)
            finally:
                os.close(lock)

    def sweep(self, used: set[str]) -> None:
        """Removes every folder that nobody has locked, but for those named in `used`."""
        for path in list(self._folder.iterdir()):
            if path.name in used or path.is_symlink() or not path.is_dir():
                continue
            self._discard(path)

    def _discard(self, path: Path) -> None:
        """Removes a folder where it is there and nobody uses it."""
        gone = path.with_name(f"{GONE}{secrets.token_hex(8)}")
        lock = None
        try:
            with self._gate(), contextlib.suppress(FileNotFoundError):
                lock = _lock(path)
                if lock is not None:
                    path.rename(gone)  # its name is free, however long the rest takes
            if lock is not None:
                remove(gone)
        finally:
            if lock is not None:
                os.close(lock)

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """One at a time, of all servers: between making a folder and locking it, nobody takes it for left behind."""
        gate = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)


def _lock(folder: Path) -> int | None:
    """Its descriptor; None where another holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove(folder: Path) -> None:
    """With all that is in it, whatever a solution has made of it. What stays is said."""
    # Not shutil.rmtree: folders may be nested deeper than Python's stack.
    said = ""
    for command in (("rm", "-rf"), ("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        try:
            code, said = run_beside((*command, "--", str(folder)), folder.parent, REMOVAL)
        except subprocess.TimeoutExpired:
            code, said = 1, f"not removed within {REMOVAL:g} s"
        if code == 0 and command[0] == "rm":
            return
    tell(f"{folder} stays: {(said.strip().splitlines() or ['rm failed'])[-1]}")
