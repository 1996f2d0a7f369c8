"""Receive a bundle into a temporary file, with limits on size and time."""

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
    """A received bundle. The caller closes `file`."""

    file: BinaryIO
    size: int
    sha256: str


async def received(request: Request, settings: Settings) -> Upload:
    """Receives the bundle. Raises `ApiError` with status 400, 408, 413 or 415, and `OSError`, on a full disk for
    example."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != TAR:
        raise ApiError(415, "media_type", f"send a bundle with Content-Type {TAR}")
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
        file.flush()  # a full disk must show here, not while the job is stored
        return Upload(file, size, digest.hexdigest())
    except TimeoutError:
        _close(file)
        raise ApiError(408, "too_slow", f"no complete bundle within {settings.upload_seconds:g} s") from None
    except ClientDisconnect:
        _close(file)
        raise ApiError(400, "bad_request", "the bundle was cut off") from None
    except BaseException:
        _close(file)
        raise


def _scratch(folder: Path) -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder)))


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # unwritten data is not needed
        file.close()


def _too_large(settings: Settings) -> ApiError:
    return ApiError(413, "too_large", f"this server takes bundles of at most {settings.upload_limit} bytes")
