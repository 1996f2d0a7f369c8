"""Open files from strangers: only regular files, no links, pipes or devices."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gdnspec.model.errors import Problem, SpecError


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Opens a regular file, and gives it with its size in bytes. Raises `SpecError` for anything else."""
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would never return.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SpecError([Problem(path, "no such file")]) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SpecError([Problem(path, "is a link", hint="copy the file itself")]) from None
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise SpecError([Problem(path, "is not a regular file")])
    with os.fdopen(handle, "rb") as file:
        yield file, status.st_size


def folder(path: Path, hint: str) -> list[str]:
    """The sorted names in a folder. Raises `SpecError` with the hint if there is no such folder."""
    try:
        return sorted(entry.name for entry in path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        what = "is not a folder" if path.exists() else "no such folder"
        raise SpecError([Problem(path, what, hint=hint)]) from None
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
