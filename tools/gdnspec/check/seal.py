"""Seals recorded results, to prove that this judge wrote them on this machine.

A submission may bring a file of verdicts, and its author can compute the keys in it. The secret of the seal is beside
the expected values, where no solution can read it.
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
    """The seal over all other fields; "" if the secret cannot be stored."""
    key = _key()
    if key is None:
        return ""
    content = result.model_copy(update={"seal": ""}).model_dump_json().encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def is_sealed(result: CheckResult) -> bool:
    """Whether this judge wrote the result, and nobody changed it."""
    return bool(result.seal) and hmac.compare_digest(result.seal, seal(result))


@cache
def _key() -> bytes | None:
    file = paths.expected_cache() / KEY_FILE
    try:
        key = _read(file)
        if key is None:
            file.unlink(missing_ok=True)  # a file that was cut off would disable seals forever
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
    """Creates the file in one step, because another process may read it at any time. The first of two wins."""
    with contextlib.suppress(FileExistsError), kept.partial(file, over=False) as handle:
        os.write(handle, secrets.token_bytes(LENGTH))
