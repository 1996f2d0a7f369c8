"""A seal on recorded results: what comes back from a file was written by this judge, on this machine.

A submission may bring a file of verdicts along, and whoever wrote it can compute its keys. The seal's key lies with the
expected values, where no solution can read.
"""

import hashlib
import hmac
import os
import secrets
from functools import cache

from gdnspec import paths
from gdnspec.model.result import CheckResult

KEY_FILE = "seal.key"


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
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as new:
                new.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        key = file.read_bytes()
    except OSError:
        return None
    return key if len(key) == 32 else None
