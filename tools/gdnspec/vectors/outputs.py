"""Read the outputs that a user computed: one file per workload, one tensor per output, and nothing else."""

from pathlib import Path
from typing import BinaryIO

from gdnspec.inputs.tensor_file import Entry, entries
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.vectors import plain
from gdnspec.vectors.describe import file_name
from gdnspec.vectors.read_back import Folder

HOW = "it needs one file per workload of the manifest, and nothing else"


def require_whole(path: Path, folder: Folder) -> None:
    """Raises `SpecError` with all files and tensors that are missing, unexpected or broken."""
    wanted = {file_name(entry.workload): entry.workload for entry in folder.workloads}
    present = plain.folder(path, HOW)
    problems = [
        Problem(path, f"{name!r} belongs to no workload of the manifest", hint=nearest(name, wanted))
        for name in present
        if name not in wanted
    ]
    for name, line in wanted.items():
        if name not in present:
            problems.append(Problem(path / name, f"no such file: the outputs of {line.name!r} are missing"))
            continue
        try:
            with plain.opened(path / name) as (file, size):
                tensors(file, size, path / name, folder.found.definition)
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)


def tensors(file: BinaryIO, size: int, path: Path, definition: Definition) -> dict[str, Entry]:
    """The places of the outputs in an open file of `size` bytes, in the definition's order. Raises `SpecError`."""
    found = entries(file, size, path)
    names = [output.name for output in definition.judged]
    problems = [
        Problem(path, f"{name!r} is not an output of {definition.name}", hint=nearest(name, names))
        for name in found
        if name not in names
    ]
    problems += [
        Problem(path, f"no tensor {name!r}, an output of {definition.name}") for name in names if name not in found
    ]
    if problems:
        raise SpecError(problems)
    return {name: found[name] for name in names}


def data(file: BinaryIO, entry: Entry, path: Path) -> bytes:
    """The bytes of one tensor."""
    file.seek(entry.start)
    read = file.read(entry.nbytes)
    if len(read) != entry.nbytes:
        raise SpecError([Problem(path, "became shorter while it was read")])
    return read
