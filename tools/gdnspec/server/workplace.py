"""The folder with one folder per running job and per page in progress.

A folder is locked while a process uses it. The lock ends with the process, however it ends. So a folder without a lock
was left by a killed server, and is removed.
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
GONE = "gone-"  # prefix of folders that are being removed


class Workplace:
    """The work folder, which all servers with the same data share. All methods raise `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[tuple[Path, int]]:
        """Makes an empty folder, and returns it with the descriptor of its lock. Removes it at the end."""
        path = self._folder / name
        self._discard(path)  # it exists if an older copy of the database was restored
        with self._gate():
            path.mkdir()
            try:
                lock = _lock(path)
            except BaseException:
                path.rmdir()
                raise
        assert lock is not None, "the gate keeps other processes out"
        try:
            yield path, lock
        finally:
            try:
                remove(path)
            finally:
                os.close(lock)

    def sweep(self, used: set[str]) -> None:
        """Removes every folder without a lock, except those named in `used`."""
        for path in list(self._folder.iterdir()):
            if path.name in used or path.is_symlink() or not path.is_dir():
                continue
            self._discard(path)

    def _discard(self, path: Path) -> None:
        """Removes a folder if it exists and has no lock."""
        gone = path.with_name(f"{GONE}{secrets.token_hex(8)}")
        lock = None
        try:
            with self._gate(), contextlib.suppress(FileNotFoundError):
                lock = _lock(path)
                if lock is not None:
                    path.rename(gone)  # frees the name before the slow removal
            if lock is not None:
                remove(gone)
        finally:
            if lock is not None:
                os.close(lock)

    @contextlib.contextmanager
    def _gate(self) -> Iterator[None]:
        """Lets one process at a time in, so that no sweep removes a folder between its creation and its lock."""
        gate = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)


def _lock(folder: Path) -> int | None:
    """Locks a folder and returns the descriptor; None if another process holds the lock."""
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
    """Removes a folder, whatever a solution has put there. Reports what could not be removed."""
    # Not shutil.rmtree: folders may be nested deeper than Python's stack allows.
    said = ""
    for command in (("rm", "-rf"), ("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        try:
            code, said = run_beside((*command, "--", str(folder)), folder.parent, REMOVAL)
        except subprocess.TimeoutExpired:
            code, said = 1, f"not removed within {REMOVAL:g} s"
        if code == 0 and command[0] == "rm":
            return
    tell(f"{folder} was not removed: {(said.strip().splitlines() or ['rm failed'])[-1]}")
