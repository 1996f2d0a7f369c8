"""Built libraries, each kept in a folder that belongs to the hash of its sources.

Processes that need the same library at once build it once: the first holds a lock, the others wait and use its file. A
file appears in one step, so that nobody loads half of it. What else it depends on, such as versions, is in its name.
"""

import contextlib
import fcntl
import hashlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path


class NoCompiler(Exception):
    """A library has to be built, and the compiler is missing."""


def library(folder: Path, name: str, depends: object, make: Callable[[Path], Path]) -> Path:
    """The library `name` of these sources. `depends`: what else it depends on. `make` builds it in an empty folder and
    returns the file; it is called only if no build is kept. Its exceptions are not caught."""
    file = f"{name}-{hashlib.sha256(repr(depends).encode()).hexdigest()[:16]}.so"
    if _is_file(folder / file):
        return folder / file
    folder = _writable(folder)
    with _alone(folder / f".{file}.lock"):
        if not (folder / file).is_file():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as scratch:
                make(Path(scratch)).replace(folder / file)
    return folder / file


def rebuilt(file: Path, name: str, depends: object, make: Callable[[Path], Path]) -> Path:
    """The library once more, in place of a kept file that cannot be loaded."""
    folder = file.parent
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        folder = _temporary(folder, error.strerror or str(error))
    return library(folder, name, depends, make)


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _writable(folder: Path) -> Path:
    """The folder, or a temporary one for this process if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        return _temporary(folder, error.strerror or str(error))


@cache
def _scratch() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="gdnspec-build-")  # removed when the process ends


def _temporary(instead: Path, why: str) -> Path:
    """A folder that replaces one that cannot be written. Warns once per process."""
    if not _scratch.cache_info().currsize:
        warnings.warn(
            f"builds cannot be kept in {instead.parent} ({why}): this process uses a temporary folder, and each later "
            "one builds again; GDNSPEC_CACHE names another folder",
            stacklevel=2,
        )
    folder = Path(_scratch().name) / hashlib.sha256(str(instead).encode()).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        with contextlib.suppress(OSError):  # without locks two processes may both build; the last file stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
