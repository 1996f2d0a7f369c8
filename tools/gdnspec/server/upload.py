"""A bundle on its way in: to a file without a name, no larger and no slower than it may be."""

import asyncio
import contextlib
import hashlib
import tempfile
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from fastapi import Request
from starlette.requests import ClientDisconnect

from gdnspec.server.api import TAR
from gdnspec.server.http_errors import ApiError
from gdnspec.server.settings import Settings

IN_MEMORY = 1 << 20  # bytes


class Upload(NamedTuple):
    """Close `file` when it has been read."""

    file: BinaryIO
    size: int
    sha256: str


async def received(request: Request, settings: Settings) -> Upload:
    """400, 408, 413 or 415. Raises `OSError`, on a full disk for example."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != TAR:
        raise ApiError(415, "media_type", f"a bundle is sent as {TAR}")
    told = request.headers.get("Content-Length", "0")
    if told.isdigit() and int(told) > settings.upload_limit:
        raise _too_large(settings)
    file = _scratch(settings.work)
    try:
        async with asyncio.timeout(settings.upload_seconds):
            size, digest = 0, hashlib.sha256()
            async for chunk in request.stream():
                size += len(chunk)
                if size > settings.upload_limit:
                    raise _too_large(settings)
                digest.update(chunk)
                file.write(chunk)
        if size == 0:
            raise ApiError(400, "bad_request", "no bundle was sent")
        file.flush()  # what the disk does not take is told now, and not while the job is written down
        return Upload(file, size, digest.hexdigest())
    except TimeoutError:
        _close(file)
        raise ApiError(408, "too_slow", f"no whole bundle within {settings.upload_seconds:g} s") from None
    except ClientDisconnect:
        _close(file)
        raise ApiError(400, "bad_request", "the bundle was cut off") from None
    except BaseException:
        _close(file)
        raise


def _scratch(folder: Path) -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder)))


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # what was not yet written goes nowhere
        file.close()


def _too_large(settings: Settings) -> ApiError:
    return ApiError(413, "too_large", f"a bundle has at most {settings.upload_limit} bytes here")
