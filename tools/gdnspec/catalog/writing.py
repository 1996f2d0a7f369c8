"""Checks that a result can be written, before the work that produces it."""

import os
import tempfile
from pathlib import Path

from gdnspec.model.errors import Problem, SpecError


def require_file(file: Path, hint: str) -> None:
    """Raises `SpecError` if the file cannot be created or replaced."""
    file = file.resolve()
    if file.is_dir():
        raise SpecError([Problem(file, "is a folder, not a file", hint=hint)])
    if file.exists() and not file.is_file():  # a pipe, or a terminal
        why = "" if os.access(file, os.W_OK) else "permission denied"
    elif not file.parent.is_dir():
        why = "its folder does not exist"
    else:
        why = refusal(file.parent)
    if why:
        raise SpecError([Problem(file, f"cannot be written: {why}", hint=hint)])


def require_folder(folder: Path, hint: str) -> None:
    """Raises `SpecError` if nothing can be written into that folder, which need not exist yet."""
    there = folder.resolve()
    while not there.exists() and there != there.parent:
        there = there.parent
    why = refusal(there) if there.is_dir() else f"{there} is a file"
    if why:
        raise SpecError([Problem(folder, f"cannot be written: {why}", hint=hint)])


def refusal(folder: Path) -> str:
    """Why no file can be created in this folder; "" if one can. It tries: permissions say nothing about a read-only
    file system, or to root."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
