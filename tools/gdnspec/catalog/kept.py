"""Files of the cache. Each appears in one step and has a checksum. `sweep` removes what killed processes left behind.

A kept file consists of one line, `sha256 HEX`, and the content. The checksum also covers the file's name, so that an
entry that was copied over another one is detected.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PARTIAL = ".partial"  # suffix of a file that is being written; its writer holds a lock on it
HEADER = re.compile(rb"sha256 ([0-9a-f]{64})\n")
LENGTH = len("sha256 \n") + 64
# Earlier versions used such names for files that they were writing, without a lock.
UNLOCKED, UNLOCKED_FOR = re.compile(r"tmp[a-z0-9_]{8}"), 3600.0  # seconds


def keep(file: Path, content: bytes) -> None:
    """Writes the content with its checksum; creates the folder for this user only. Raises `OSError`, and then leaves an
    earlier file as it was."""
    with partial(file) as handle:
        for piece in (f"sha256 {_checksum(file, content)}\n".encode(), content):
            left = memoryview(piece)
            while left:
                left = left[os.write(handle, left) :]


def kept(file: Path, warn: Callable[[str], None], what: str) -> bytes | None:
    """The content that was written; None if there is none. A broken entry is removed, and `warn` gets a message. `what`
    says what happens next, such as "computed again"."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    header = HEADER.fullmatch(data[:LENGTH])
    content = data[LENGTH:]
    if header is not None and header.group(1).decode() == _checksum(file, content):
        return content
    drop(file, warn, what)
    return None


def drop(file: Path, warn: Callable[[str], None], what: str) -> None:
    """Removes a broken entry."""
    with contextlib.suppress(OSError):
        file.unlink()
    warn(f"{file}: this entry of the cache is broken and was removed: {what}")


@contextlib.contextmanager
def partial(file: Path, over: bool = True) -> Iterator[int]:
    """The descriptor of a new file, which becomes `file` at the end unless an exception is raised. Raises `OSError`,
    and `FileExistsError` if `file` exists and `over` is false."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, handle = _locked(file)
    try:
        yield handle
        if over:
            path.replace(file)
        else:
            file.hardlink_to(path)
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def sweep(folder: Path) -> None:
    """Removes partial files of killed processes from this folder. Ignores errors."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            path = Path(entry.path)
            with contextlib.suppress(OSError):
                if entry.name.endswith(PARTIAL):
                    remove_abandoned(path, Path.unlink)
                elif UNLOCKED.fullmatch(entry.name) and time.time() - path.lstat().st_mtime > UNLOCKED_FOR:
                    path.unlink()


def new_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder for this user only, and a descriptor that holds a lock on it: `remove_abandoned` leaves the
    folder until the descriptor is closed. Creates the parent too. Raises `OSError`."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another process removed it before it was locked
        _lock(handle)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)


def remove_abandoned(path: Path, remove: Callable[[Path], object]) -> None:
    """Calls `remove` for this file or folder unless a process holds the lock on it. Raises `OSError`.

    The lock is held meanwhile: a process that has just created it waits, and then finds it gone.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
    except BlockingIOError:
        pass
    finally:
        os.close(handle)


def _locked(file: Path) -> tuple[Path, int]:
    """A new, locked file beside `file`, and its descriptor."""
    while True:
        path = file.with_name(f".{file.name[:100]}.{secrets.token_hex(6)}{PARTIAL}")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(handle)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # another process removed it before it was locked


def _lock(handle: int) -> None:
    with contextlib.suppress(OSError):  # on a file system without locks, `sweep` gets none either
        fcntl.flock(handle, fcntl.LOCK_EX)


def _checksum(file: Path, content: bytes) -> str:
    digest = hashlib.sha256(file.name.encode() + b"\0")
    digest.update(content)
    return digest.hexdigest()
