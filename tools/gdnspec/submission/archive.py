"""A bundle's files as one archive, and back: the same files give the same bytes, and from a stranger's archive nothing
comes but plain files with plain names.

Plain tar, uncompressed: what a compressor writes differs from one version of it to the next, and what it promises to be
ten gigabytes fits in ten kilobytes.
"""

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from gdnspec.model.errors import Problem, SpecError

MOST_FILES = 1000
MOST_BYTES = 48 << 20  # of all files together
LONGEST_NAME = 200
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")  # of a path: no dot in front, nothing that looks like something else


def pack(files: Mapping[str, bytes]) -> bytes:
    """Sorted by name, without owner, time or mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            problem = _name_problem(name)
            if problem:
                raise SpecError(f"{name!r} cannot be packed: {problem}")
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), 0o644
            archive.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()


def unpack(path: Path) -> dict[str, bytes]:
    """Name to content, in memory: nothing is written anywhere. Raises `SpecError` naming what is wrong."""
    size = _size(path)
    if size > MOST_BYTES + (MOST_FILES << 11):
        raise SpecError([Problem(path, f"{size} bytes: a bundle has at most {MOST_BYTES >> 20} MiB")])
    files: dict[str, bytes] = {}
    seen: dict[str, str] = {}  # names that a file system may take for one another
    total = 0
    try:
        with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for count, member in enumerate(archive, start=1):
                if count > MOST_FILES:
                    raise SpecError([Problem(path, f"more than {MOST_FILES} files")])
                problem = _name_problem(member.name) or _kind_problem(member)
                if problem:
                    raise SpecError([Problem(path, f"{member.name[:200]!r}: {problem}")])
                total += member.size
                if total > MOST_BYTES:
                    raise SpecError([Problem(path, f"its files have more than {MOST_BYTES >> 20} MiB together")])
                folded = member.name.casefold()
                if folded in seen:
                    raise SpecError([Problem(path, f"{member.name!r} stands twice, first as {seen[folded]!r}")])
                seen[folded] = member.name
                content = archive.extractfile(member)
                data = content.read(member.size + 1) if content is not None else b""
                if len(data) != member.size:
                    raise SpecError([Problem(path, f"{member.name!r} is cut off")])
                files[member.name] = data
            _nothing_after(stream, path)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, UnicodeError) as error:
        raise SpecError([Problem(path, f"not a whole tar archive: {error}")]) from None
    if not files:
        raise SpecError([Problem(path, "holds no file")])
    for name in files:
        parts = name.split("/")
        for i in range(1, len(parts)):
            if "/".join(parts[:i]) in files:
                raise SpecError([Problem(path, f"{'/'.join(parts[:i])!r} is a file and a folder")])
    return files


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            raise SpecError([Problem(path, "no such file" if not path.exists() else "is not a file")])
        return path.stat().st_size
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None


def _name_problem(name: str) -> str:
    if len(name) > LONGEST_NAME:
        return f"a name of more than {LONGEST_NAME} characters"
    if name.startswith("/"):
        return "an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "a path that leads out of the bundle"
    if not all(PART.fullmatch(part) for part in parts):
        return "a name of other characters than letters, digits, '_', '.' and '-'"
    return ""


def _kind_problem(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    if member.isdir():
        return "a folder: folders follow from the files in them"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        return "neither a plain file nor a folder"
    return "its size is negative" if member.size < 0 else ""


def _nothing_after(stream: io.BufferedReader, path: Path) -> None:
    """Blocks of zeros end an archive: a second one behind them would be seen by some readers and not by others."""
    rest = stream.read(MOST_FILES << 11)
    if rest.strip(b"\0") or stream.read(1):
        raise SpecError([Problem(path, "there is something behind the archive's end")])
