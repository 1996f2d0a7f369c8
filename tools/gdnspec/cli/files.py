"""Files that a command writes."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


def replaced(path: Path, data: bytes) -> None:
    """The file with that content, in one step. Raises `OSError`; what stood there is then as it was."""
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[TextIO]:
    """A file that is there when all of it is: what stood there stays until then. A link stays one, and what is no
    regular file is written to as it is."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")  # two commands may write one file
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
