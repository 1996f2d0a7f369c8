"""Find out whether a disk is full."""

import errno
import os
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
NONE_LEFT = 64 << 10  # bytes: SQLite writes a page or two at a time
TOO_LITTLE = 16 << 20  # bytes: less than a job may need


def for_want_of_room(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the disk or the user's quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def full(folder: Path, least: int = NONE_LEFT) -> bool:
    """Whether the disk of a folder has fewer than `least` bytes left, or no free inode. False if this is unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < least or (found.f_files > 0 and found.f_favail == 0)
