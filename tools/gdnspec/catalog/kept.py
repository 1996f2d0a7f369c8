"""Files of the cache: each appears in one step and carries a checksum; what a killed process left behind is swept.

A kept file is one line, `sha256 HEX`, and the content. The checksum covers the file's name too, so that an entry copied
over another one is found as well.
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

PARTIAL = ".partial"  # the end of the name of a file that is being written; its writer holds a lock on it
HEADER = re.compile(rb"sha256 ([0-9a-f]{64})\n")
LENGTH = len("sha256 \n") + 64
# Earlier versions named files that they were writing like this, and held no lock on them.
UNLOCKED, UNLOCKED_FOR = re.compile(r"tmp[a-z0-9_]{8}"), 3600.0  # seconds


def keep(file: Path, content: bytes) -> None:
    """Writes the content and its checksum. Makes the folder, for this user alone, where there is none. Raises
    `OSError`; what stood there is then still there."""
    with partial(file) as handle:
        for piece in (f"sha256 {_checksum(file, content)}\n".encode(), content):
            left = memoryview(piece)
            while left:
                left = left[os.write(handle, left) :]


def kept(file: Path, warn: Callable[[str], None], what: str) -> bytes | None:
    """The content as it was written; None where there is none. A broken entry is removed, and `warn` is told so:
    `what` says what happens now, such as "computed again"."""
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
    """Removes an entry that is broken."""
    with contextlib.suppress(OSError):
        file.unlink()
    warn(f"{file}: a broken entry of the cache is dropped: {what}")


@contextlib.contextmanager
def partial(file: Path, over: bool = True) -> Iterator[int]:
    """The descriptor of a new file, which becomes `file` at the end unless something is raised. Raises `OSError`;
    unless it may write `over` what stands there, `FileExistsError` where something does."""
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
    """Removes what processes that have been killed were writing into this folder. Says nothing where it cannot."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            with contextlib.suppress(OSError):
                unlocked = UNLOCKED.fullmatch(entry.name)
                if (entry.name.endswith(PARTIAL) and not holder_lives(Path(entry.path))) or (
                    unlocked and time.time() - entry.stat(follow_symlinks=False).st_mtime > UNLOCKED_FOR
                ):
                    Path(entry.path).unlink()


def new_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, for this user alone, and a descriptor that holds a lock on it: `holder_lives` is true of the folder
    until that is closed. Makes the parent too. Raises `OSError`."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # swept before it was locked
        _lock(handle)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)


def holder_lives(path: Path) -> bool:
    """Whether a process still writes this file, or into this folder, and holds the lock. Raises `OSError` where nobody
    can tell."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _locked(file: Path) -> tuple[Path, int]:
    """A new file beside that one, and its descriptor, locked."""
    while True:
        path = file.with_name(f".{file.name[:100]}.{secrets.token_hex(6)}{PARTIAL}")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _lock(handle)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # swept before it was locked


def _lock(handle: int) -> None:
    with contextlib.suppress(OSError):  # a file system without locks: who sweeps gets none there either
        fcntl.flock(handle, fcntl.LOCK_EX)


def _checksum(file: Path, content: bytes) -> str:
    digest = hashlib.sha256(file.name.encode() + b"\0")
    digest.update(content)
    return digest.hexdigest()
