"""A seal on recorded results: what comes back from a file was written by this judge, on this machine.

A submission may bring a file of verdicts along, and whoever wrote it can compute its keys. The seal's key lies with the
expected values, where no solution can read.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from functools import cache
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog import kept
from gdnspec.model.result import CheckResult

KEY_FILE, LENGTH = "seal.key", 32


def seal(result: CheckResult) -> str:
    """Over every field but the seal itself; empty where no key can be kept."""
    key = _key()
    if key is None:
        return ""
    content = result.model_copy(update={"seal": ""}).model_dump_json().encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def is_sealed(result: CheckResult) -> bool:
    """Whether this judge wrote it, as it stands."""
    return bool(result.seal) and hmac.compare_digest(result.seal, seal(result))


@cache
def _key() -> bytes | None:
    file = paths.expected_cache() / KEY_FILE
    try:
        key = _read(file)
        if key is None:
            file.unlink(missing_ok=True)  # cut short: no seal could ever be made
            _make(file)
            key = _read(file)
    except OSError:
        return None
    return key


def _read(file: Path) -> bytes | None:
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        return None
    return key if len(key) == LENGTH else None


def _make(file: Path) -> None:
    """Whole from the start: another process may read it at any time. The first of two wins."""
    with contextlib.suppress(FileExistsError), kept.partial(file, over=False) as handle:
        os.write(handle, secrets.token_bytes(LENGTH))
