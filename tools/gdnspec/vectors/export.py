"""Write a folder of test vectors, completely or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdnspec.catalog.definitions import Found
from gdnspec.inputs import memory
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.inputs.tensor_file import encoded
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import parse_json, read_text
from gdnspec.model.vectors import VectorsManifest, VectorWorkload
from gdnspec.model.workload import Workload
from gdnspec.vectors import conventions, plain
from gdnspec.vectors.describe import INPUTS, SUFFIX, describe
from gdnspec.vectors.readme import readme

MANIFEST, README = "manifest.json", "README.md"
UNKNOWN = "0" * 64


def export(found: Found, lines: list[Workload], out: Path, force: bool) -> int:
    """Writes the folder `out` and returns the size of its inputs in bytes. `force` replaces an earlier export.

    Raises `SpecError` if `out` is something else, or if a workload cannot be drawn here.
    """
    if os.path.lexists(out):
        _require_replaceable(out, force)
    elif not out.absolute().parent.is_dir():
        raise SpecError([Problem(out, "its folder does not exist")])
    planned = [
        describe(found, line, UNKNOWN) for line in lines
    ]  # a line without a budget is an error before anything is drawn
    with staged(out) as stage:
        (stage / INPUTS).mkdir()
        total = 0
        workloads: list[VectorWorkload] = []
        for entry in planned:
            sha256, size = _write(stage / entry.file, inputs_of(found, entry.workload))
            workloads.append(entry.model_copy(update={"sha256": sha256}))
            total += size
        manifest = VectorsManifest(schema_version=1, definition=found.definition, workloads=workloads)
        (stage / MANIFEST).write_text(text(manifest), encoding="utf-8")
        (stage / README).write_text(readme(manifest), encoding="utf-8")
        for name, words in conventions.pages(found.family.folder).items():
            (stage / name).write_text(words, encoding="utf-8")
        _into_place(stage, out)
    return total


def text(manifest: VectorsManifest) -> str:
    """The manifest as JSON. Keys that the files of definition and workloads leave out are left out here too."""
    return json.dumps(manifest.model_dump(mode="json", exclude_unset=True), indent=1) + "\n"


def inputs_of(found: Found, line: Workload) -> Inputs:
    """Draws the inputs. Raises `SpecError` if they cannot be drawn here."""
    try:
        memory.require(found, line)
        return materialise(found, line)
    except (InvalidWorkload, MemoryError) as error:
        raise SpecError(f"workload {line.name!r}: {error}") from None


def _write(path: Path, inputs: Inputs) -> tuple[str, int]:
    """Writes the file, and returns its sha256 and its size in bytes."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in encoded(inputs.tensors):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
    return digest.hexdigest(), size


# --- where it goes ---------------------------------------------------------------------------------------------------


def _require_replaceable(out: Path, force: bool) -> None:
    if not force:
        raise SpecError([Problem(out, "exists already", hint="--force replaces an earlier export")])
    names = plain.folder(out, "name a folder")
    if not names:
        return
    if not _is_export(out / MANIFEST):
        raise SpecError([Problem(out, "is not an earlier export, so --force does not replace it")])
    inputs = out / INPUTS
    others = plain.folder(inputs, "name another folder") if INPUTS in names else []
    if inputs.is_symlink() or not all(name.endswith(SUFFIX) and (inputs / name).is_file() for name in others):
        hint = "move them away, or name another folder"
        raise SpecError([Problem(inputs, "holds files that no export wrote", hint=hint)])


def _is_export(file: Path) -> bool:
    """Whether a file is a manifest of any schema version."""
    try:
        data = parse_json(read_text(file), file)
    except SpecError:
        return False
    return isinstance(data, dict) and {"schema_version", "definition", "workloads"} <= data.keys()


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`, so that an interrupted export leaves nothing."""
    place = out.absolute()
    stage = place.parent / f".{place.name}.{os.getpid()}"
    stage.mkdir()
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _into_place(stage: Path, out: Path) -> None:
    if not os.path.lexists(out):
        stage.rename(out)
        return
    # The manifest is removed first and written last, so that an incomplete folder is not an export.
    (out / MANIFEST).unlink(missing_ok=True)
    if (out / INPUTS).exists():
        shutil.rmtree(out / INPUTS)
    for file in sorted(stage.iterdir(), key=lambda file: file.name == MANIFEST):
        file.rename(out / file.name)
