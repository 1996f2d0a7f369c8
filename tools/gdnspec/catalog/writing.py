"""Whether something can be written, asked before the work whose result it is to hold."""

import os
import tempfile
from pathlib import Path

from gdnspec.model.errors import Problem, SpecError


def require_file(file: Path, hint: str) -> None:
    """Raises `SpecError` where no such file can be made, or the one there not be replaced."""
    file = file.resolve()
    if file.is_dir():
        raise SpecError([Problem(file, "is a folder, and a file is to be written", hint=hint)])
    if file.exists() and not file.is_file():  # a pipe, or a terminal
        why = "" if os.access(file, os.W_OK) else "permission denied"
    elif not file.parent.is_dir():
        why = "there is no such folder to put it in"
    else:
        why = refusal(file.parent)
    if why:
        raise SpecError([Problem(file, f"cannot be written: {why}", hint=hint)])


def require_folder(folder: Path, hint: str) -> None:
    """Raises `SpecError` where nothing can be put into that folder, which may still have to be made."""
    there = folder.resolve()
    while not there.exists() and there != there.parent:
        there = there.parent
    why = refusal(there) if there.is_dir() else f"{there} is a file"
    if why:
        raise SpecError([Problem(folder, f"cannot be written: {why}", hint=hint)])


def refusal(folder: Path) -> str:
    """Why no file can be made in this folder; empty where one can. It is tried: modes do not tell of a disk that is
    mounted for reading, and say nothing to root."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""
