"""Read a folder of test vectors back. It is accepted only if gdnspec would write the same."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs import memory
from gdnspec.inputs.materialise import InvalidWorkload, materialise
from gdnspec.inputs.tensor_file import encoded
from gdnspec.model.errors import PlacedError, Problem, SpecError, nearest
from gdnspec.model.loading import build, parse_json, read_text
from gdnspec.model.vectors import VectorsManifest, VectorWorkload
from gdnspec.model.workload import Workload
from gdnspec.vectors import plain
from gdnspec.vectors.describe import INPUTS, describe, difference, file_name
from gdnspec.vectors.export import MANIFEST

HOW = "gdnspec vectors export DEFINITION --out DIR makes one"
AGAIN = "export it again"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Folder:
    """Test vectors that were checked. `own`: names of the workloads that gdnspec does not ship."""

    path: Path
    found: Found
    workloads: list[VectorWorkload]
    own: list[str]


def read(path: Path) -> Folder:
    """Reads and checks a folder: manifest, definition, lines, and the bytes of every input. Raises `SpecError` with all
    problems."""
    manifest = _manifest(path)
    file = path / MANIFEST
    found = _definition(manifest, file)
    shipped = {line.name: line for line in workloads(found)}
    problems: list[Problem] = []
    if (path / INPUTS).is_symlink():
        problems.append(Problem(path / INPUTS, "is a link", hint="copy the folder itself"))
    for i, entry in enumerate(manifest.workloads):
        place = f"/workloads/{i}"
        wrong = _line_problems(found, entry, shipped, file, place)
        problems += wrong or _input_problems(found, entry, path, place)
    if problems:
        raise SpecError(problems)
    own = [entry.workload.name for entry in manifest.workloads if entry.workload.name not in shipped]
    return Folder(path, found, manifest.workloads, own)


def _manifest(path: Path) -> VectorsManifest:
    file = path / MANIFEST
    if MANIFEST not in plain.folder(path, HOW):
        raise SpecError([Problem(path, f"is not a folder of test vectors: it has no {MANIFEST}", hint=HOW)])
    with plain.opened(file):
        data = parse_json(read_text(file), file)
    try:
        return build(VectorsManifest, data, file)
    except SpecError as error:
        # In another version everything may differ, so only the version is reported.
        raise SpecError([p for p in error.problems if p.place == "/schema_version"] or error.problems) from None


def _definition(manifest: VectorsManifest, file: Path) -> Found:
    name = manifest.definition.name
    if name not in definitions():
        raise SpecError([Problem(file, f"no definition {name!r}", "/definition/name", nearest(name, definitions()))])
    found = definitions()[name]
    got, own = (d.model_dump(mode="json") for d in (manifest.definition, found.definition))
    differs = difference(got, own, "/definition")
    if differs is not None:
        raise SpecError([Problem(file, f"another definition: {differs[1]}", differs[0], AGAIN)])
    return found


def _line_problems(
    found: Found, entry: VectorWorkload, shipped: dict[str, Workload], file: Path, place: str
) -> list[Problem]:
    """Problems of an entry: its line differs from ours, is invalid, or does not give the rest of the entry."""
    line = entry.workload
    if line.name in shipped:
        differs = difference(line.model_dump(mode="json"), shipped[line.name].model_dump(mode="json"))
        if differs is not None:
            message = f"{line.name!r} is not the workload that gdnspec ships: {differs[1]}"
            return [Problem(file, message, f"{place}/workload{differs[0]}", AGAIN)]
    else:
        try:
            _require_usable(found, line)
        except PlacedError as error:
            return [Problem(file, error.message, f"{place}/workload{error.pointer}", error.hint)]
    try:
        own = describe(found, line, entry.sha256)
    except SpecError as error:
        return error.problems or [Problem(file, str(error), place)]
    differs = difference(entry.model_dump(mode="json"), own.model_dump(mode="json"), place)
    if differs is not None:
        return [Problem(file, f"does not follow from the workload's line: {differs[1]}", differs[0], AGAIN)]
    return []


def _require_usable(found: Found, line: Workload) -> None:
    if found.family.preset(line.preset) is None:
        raise PlacedError("/preset", f"no preset {line.preset!r}", nearest(line.preset, found.family.presets))
    if line.tensors is not None and not (found.folder / line.tensors).is_file():
        raise PlacedError("/tensors", f"no file {line.tensors!r} in {found.folder.name}/")
    line.check(found.definition, preset_of(found, line))


def _input_problems(found: Found, entry: VectorWorkload, folder: Path, place: str) -> list[Problem]:
    """Problems of the manifest's hash and the file's bytes, found by drawing the inputs again."""
    line, file, path = entry.workload, folder / MANIFEST, folder / INPUTS / file_name(entry.workload)
    try:
        memory.require(found, line, memory.ON_A_CPU)
        pieces = list(encoded(materialise(found, line).tensors))
    except (InvalidWorkload, MemoryError) as error:
        return [Problem(file, f"{line.name!r} cannot be judged: {error}", place)]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != entry.sha256:
        message = f"{entry.sha256[:12]}.., but the inputs of this line have {digest.hexdigest()[:12]}.."
        return [Problem(file, message, f"{place}/sha256", AGAIN)]
    try:
        if not _holds(path, sum(map(len, pieces)), entry.sha256):
            message = f"was edited: its bytes do not have the manifest's sha256, {entry.sha256[:12]}.."
            return [Problem(path, message, hint=AGAIN)]
    except SpecError as error:
        return error.problems
    return []


def _holds(path: Path, size: int, sha256: str) -> bool:
    with plain.opened(path) as (file, length):
        if length != size:  # do not read a file that may be huge
            return False
        digest = hashlib.sha256()
        while block := file.read(BLOCK):
            digest.update(block)
        return digest.hexdigest() == sha256
