"""A bundle's files as one archive, and back: the same files give the same bytes, and from a stranger's archive nothing
comes but plain files with plain names.

Plain tar, uncompressed: what a compressor writes differs from one version of it to the next, and what it promises to be
ten gigabytes fits in ten kilobytes.
"""

import io
import os
import re
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

from gdnspec.model.errors import Problem, SpecError

MOST_FILES = 1000
MOST_BYTES = 64 << 20  # of all files together
MOST_OF_ONE = 32 << 20
LONGEST_NAME = 200
BLOCK = 512
MOST_ARCHIVE = MOST_BYTES + MOST_FILES * 2 * BLOCK + tarfile.RECORDSIZE
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")  # of a path: no dot in front, nothing that looks like another name
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
KINDS = {
    tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe", tarfile.DIRTYPE: "a folder: they follow from file names",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}  # fmt: skip


def pack(files: Mapping[str, bytes]) -> bytes:
    """The archive, sorted by name, without owner, time or mode. Raises `SpecError` where a bundle cannot hold that."""
    _hold_to_limits(len(files), sum(map(len, files.values())), Path("bundle"))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            problem = name_problem(name) or _size_problem(len(files[name]))
            if problem:
                raise SpecError(f"{name[:LONGEST_NAME]!r} cannot be packed: {problem}")
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), 0o644
            try:
                archive.addfile(member, io.BytesIO(files[name]))
            except ValueError as error:  # a long name that has no slash in the right place
                raise SpecError(f"{name!r} cannot be packed: {error}") from None
    return out.getvalue()


def unpack(path: Path) -> dict[str, bytes]:
    """Name to content, in memory: nothing is written anywhere. Raises `SpecError` naming what is wrong."""
    data = _read(path)
    for magic, kind in COMPRESSED.items():
        if data.startswith(magic):
            raise SpecError([Problem(path, f"is compressed ({kind}): a bundle is a plain tar, as submit packs it")])
    try:
        files = _members(data, path)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(
            [Problem(path, f"not a whole tar archive: {str(error)[:200] or type(error).__name__}")]
        ) from None
    _hold_apart(files, path)
    # What another reader might take otherwise: owners, modes, times, extended headers, a second archive at the end.
    if pack(files) != data:
        raise SpecError([Problem(path, "is not as gdnspec submit packs it, byte for byte")])
    return files


def _read(path: Path) -> bytes:
    """The whole file, no larger than a bundle may be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without waiting: it may be a pipe
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SpecError([Problem(path, "is not a regular file")])
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                data = stream.read(MOST_ARCHIVE + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise SpecError([Problem(path, "no such file")]) from None
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    if len(data) > MOST_ARCHIVE:
        raise SpecError([Problem(path, f"larger than {MOST_ARCHIVE >> 20} MiB, which no bundle is")])
    return data


def _members(data: bytes, path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            problem = name_problem(member.name) or _kind_problem(member) or _size_problem(member.size)
            if problem:
                raise SpecError([Problem(path, f"{member.name[:LONGEST_NAME]!r}: {problem}")])
            if member.name in files:
                raise SpecError([Problem(path, f"{member.name!r} stands in it twice")])
            total += member.size
            _hold_to_limits(len(files) + 1, total, path)
            content = archive.extractfile(member)
            found = content.read(member.size) if content is not None else b""
            if len(found) != member.size:
                raise SpecError([Problem(path, f"{member.name!r} is cut off")])
            files[member.name] = found
    if not files:
        raise SpecError([Problem(path, "holds no file")])
    return files


def _hold_to_limits(count: int, total: int, path: Path) -> None:
    if count > MOST_FILES:
        raise SpecError([Problem(path, f"more than {MOST_FILES} files")])
    if total > MOST_BYTES:
        raise SpecError([Problem(path, f"its files have more than {MOST_BYTES >> 20} MiB together")])


def _hold_apart(files: Mapping[str, bytes], path: Path) -> None:
    """No two names that a file system may take for one, and none that is a file and a folder."""
    seen: dict[str, str] = {}
    for name in files:
        folded = name.casefold()
        if folded in seen:
            raise SpecError([Problem(path, f"{name!r} and {seen[folded]!r} are one name where case does not count")])
        seen[folded] = name
    for name in files:
        for parent in Path(name.casefold()).parents:
            if str(parent) in seen:
                raise SpecError([Problem(path, f"{seen[str(parent)]!r} is a file and a folder")])


def name_problem(name: str) -> str:
    """Why a bundle holds no file of that name; empty where it may."""
    if len(name) > LONGEST_NAME:
        return f"a name of more than {LONGEST_NAME} characters"
    if name.startswith("/"):
        return "an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "a path that leads out of the bundle"
    if not all(PART.fullmatch(part) for part in parts):
        return "names are made of letters, digits, '_', '.' and '-', and start with none of the last two"
    return ""


def _kind_problem(member: tarfile.TarInfo) -> str:
    if member.isreg() and not member.issparse():
        return ""
    return KINDS.get(member.type, "not a regular file")


def _size_problem(size: int) -> str:
    if size < 0:
        return "its size is negative"
    return f"larger than {MOST_OF_ONE >> 20} MiB" if size > MOST_OF_ONE else ""
