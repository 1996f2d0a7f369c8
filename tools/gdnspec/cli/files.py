"""Files that a command writes."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


def replaced(path: Path, data: bytes) -> None:
    """Writes the file in one step. Raises `OSError`, and then an earlier file is unchanged."""
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """Opens a file that appears only when it is complete; an earlier file stays until then. A link stays a link. A pipe
    or a device is written to directly."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    partial = path.with_name(
        f".{path.name[:200]}.{secrets.token_hex(4)}.partial"
    )  # two commands may write the same file
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
