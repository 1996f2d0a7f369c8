"""The folder in which a server keeps everything."""

import os

from gdnspec.model.errors import Problem, SpecError
from gdnspec.server.database import Database, StorageError
from gdnspec.server.settings import Settings


def opened(settings: Settings) -> Database:
    """Opens the database. Makes its folder if needed, readable only by the owner. Raises `SpecError`."""
    data = settings.data
    os.umask(0o077)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings.work.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecError([Problem(data, f"cannot be written: {error.strerror}", hint="--data DIR")]) from None
    if data.stat().st_mode & 0o077:
        raise SpecError([Problem(data, "other users of this machine can read it", hint=f"chmod 700 {data}")])
    try:
        return Database(settings.database)
    except StorageError as error:
        raise SpecError(f"{error} (--data DIR)") from None
