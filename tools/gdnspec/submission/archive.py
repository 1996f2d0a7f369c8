"""Pack a bundle's files into one archive, and unpack them. The same files give the same bytes. Unpacking a stranger's
archive gives only regular files with plain names.

The archive is an uncompressed tar. The output of a compressor depends on its version, and ten kilobytes of it can
expand to ten gigabytes.
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
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")  # of a path: no dot at the start, no characters that look alike
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
KINDS = {
    tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe", tarfile.DIRTYPE: "a folder, but a bundle lists only files",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}  # fmt: skip


def pack(files: Mapping[str, bytes]) -> bytes:
    """The archive, sorted by name, without owner, time or mode. Raises `SpecError` if a bundle cannot hold a file."""
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
            except ValueError as error:  # tar can split a long name only at a slash
                raise SpecError(f"{name!r} cannot be packed: {error}") from None
    return out.getvalue()


def unpack(path: Path) -> dict[str, bytes]:
    """The files of an archive, content by name. Writes nothing to disk. Raises `SpecError`."""
    data = _read(path)
    for magic, kind in COMPRESSED.items():
        if data.startswith(magic):
            hint = "a bundle is an uncompressed tar, as gdnspec submit packs it"
            raise SpecError([Problem(path, f"is compressed ({kind})", hint=hint)])
    try:
        files = _members(data, path)
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(
            [Problem(path, f"not a whole tar archive: {str(error)[:200] or type(error).__name__}")]
        ) from None
    _hold_apart(files, path)
    # Refuses everything else that a tar may hold: owners, modes, times, extended headers, a second archive at the end.
    if pack(files) != data:
        raise SpecError([Problem(path, "is not byte for byte as gdnspec submit packs it")])
    return files


def _read(path: Path) -> bytes:
    """The content of the file. Raises `SpecError` if it is larger than a bundle may be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe must not wait
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                what = "is a folder" if path.is_dir() else "is not a regular file"
                raise SpecError([Problem(path, what, hint="gdnspec submit packs a solution as one file")])
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                data = stream.read(MOST_ARCHIVE + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise SpecError([Problem(path, "no such file")]) from None
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None
    if len(data) > MOST_ARCHIVE:
        raise SpecError([Problem(path, f"is larger than a bundle may be, {MOST_ARCHIVE >> 20} MiB")])
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
                raise SpecError([Problem(path, f"contains {member.name!r} twice")])
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
        raise SpecError([Problem(path, f"has more than {MOST_FILES} files")])
    if total > MOST_BYTES:
        raise SpecError([Problem(path, f"has files of more than {MOST_BYTES >> 20} MiB together")])


def _hold_apart(files: Mapping[str, bytes], path: Path) -> None:
    """Raises `SpecError` if a file system may take two names for one, or if a name is both a file and a folder."""
    seen: dict[str, str] = {}
    for name in files:
        folded = name.casefold()
        if folded in seen:
            raise SpecError([Problem(path, f"{name!r} and {seen[folded]!r} differ only in upper and lower case")])
        seen[folded] = name
    for name in files:
        for parent in Path(name.casefold()).parents:
            if str(parent) in seen:
                raise SpecError([Problem(path, f"{seen[str(parent)]!r} is both a file and a folder")])


def name_problem(name: str) -> str:
    """Why a bundle cannot hold a file of this name; empty if it can."""
    if len(name) > LONGEST_NAME:
        return f"a name of more than {LONGEST_NAME} characters"
    if name.startswith("/"):
        return "an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "a path that leads out of the bundle"
    if not all(PART.fullmatch(part) for part in parts):
        return "names are made of letters, digits, '_', '.' and '-', and do not start with '.' or '-'"
    return ""


def _kind_problem(member: tarfile.TarInfo) -> str:
    if member.isreg() and not member.issparse():
        return ""
    return KINDS.get(member.type, "not a regular file")


def _size_problem(size: int) -> str:
    if size < 0:
        return "its size is negative"
    return f"larger than {MOST_OF_ONE >> 20} MiB" if size > MOST_OF_ONE else ""
