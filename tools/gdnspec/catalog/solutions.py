"""Solutions: one folder each, found by a glob, their entry points checked without running them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.source import Signature, cuda_exports, python_functions
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.expression import parse
from gdnspec.model.loading import is_file, load
from gdnspec.model.solution import Entry, Manifest

MANIFEST = "solution.json"
MAX_SOURCE_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True)
class Solution:
    """A manifest and the folder that it came from."""

    manifest: Manifest
    folder: Path = field(compare=False)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def is_peer(self) -> bool:
        """Another library, for comparison: run where it is named, never because all are."""
        return self.folder.parent == paths.peers_dir()

    @cached_property
    def source_hash(self) -> str:
        return source_hash(self.manifest, lambda name: (self.folder / name).read_bytes())


def source_hash(manifest: Manifest, read: Callable[[str], bytes]) -> str:
    """sha256 over the manifest and every source: what a verdict or a trace belongs to."""
    digest = hashlib.sha256()
    for name in (MANIFEST, *sorted(manifest.sources)):
        content = read(name)
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def load_solution(folder: Path) -> Solution:
    """One solution; raises `SpecError` with every problem of its manifest and entry points."""
    file = folder / MANIFEST
    manifest = load(Manifest, file)
    problems = []
    if manifest.name != folder.name:
        problems.append(Problem(file, f"{manifest.name!r} in a folder named {folder.name!r}", "/name"))
    total = 0
    for i, name in enumerate(manifest.sources):
        source = folder / name
        if not is_file(source):
            problems.append(Problem(file, f"no file {name!r} in the solution's folder", f"/sources/{i}"))
        elif not _lies_in_a_solution(folder, source):
            message = f"{name!r} leads to a file of no solution"
            allowed = "a link may lead to a file of this solution, or of one whose folder is beside this one's"
            problems.append(Problem(file, message, f"/sources/{i}", allowed))
        elif why := _unreadable(source):
            problems.append(Problem(file, f"{name!r} cannot be read: {why}", f"/sources/{i}"))
        else:
            total += source.stat().st_size
    if total > MAX_SOURCE_BYTES:
        problems.append(Problem(file, f"sources of over {MAX_SOURCE_BYTES >> 20} MiB", "/sources"))
    if not problems and manifest.language == "triton" and not _has_triton(folder, manifest):
        message = 'is "triton" and no source has a kernel of it'
        problems.append(Problem(file, message, "/language", "a function under @triton.jit or @gluon.jit"))
    if not problems:
        for name, entry in manifest.entries.items():
            problems += _entry_problems(folder, file, name, entry)
    if problems:
        raise SpecError(problems)
    return Solution(manifest, folder)


def _unreadable(source: Path) -> str:
    """Why; empty where it can be read. Found here it costs one solution, and where all are hashed it costs all."""
    try:
        with source.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _lies_in_a_solution(folder: Path, source: Path) -> bool:
    """Links followed: in this one's folder, or in that of a solution beside it, which shares its sources."""
    beside = folder.resolve().parent
    return any(above.parent == beside and (above / MANIFEST).is_file() for above in source.resolve().parents)


def _has_triton(folder: Path, manifest: Manifest) -> bool:
    """A kernel that is interpreted without a GPU is let off what takes the interpreter minutes."""
    marks = (b"triton.jit", b"gluon.jit", b"import jit")
    return any(mark in (folder / name).read_bytes() for name in manifest.sources for mark in marks)


def _entry_problems(folder: Path, file: Path, name: str, entry: Entry) -> list[Problem]:
    at = f"/entries/{name}"
    if name not in definitions():
        return [Problem(file, f"no definition {name!r}", at, nearest(name, definitions()))]
    definition = definitions()[name].definition
    problems = [
        Problem(file, f"{unknown!r} is not an axis, a switch, a dtype, `device` or `contiguous`", f"{at}/supports/{i}")
        for i, text in enumerate(entry.supports)
        for unknown in sorted(parse(text).names - support_names(definition))
    ]
    try:
        if entry.file.endswith(".cu"):
            exports = cuda_exports(folder / entry.file)
            if entry.function not in exports:
                message = f"{entry.file} exports no {entry.function!r}"
                problems.append(Problem(file, message, f"{at}/entry", nearest(entry.function, exports)))
            return problems
        inputs = [tensor.name for tensor in definition.inputs]
        outputs = [tensor.name for tensor in definition.outputs] if entry.call == "out" else []
        prepared = ["prepared"] if entry.prepare else []
        problems += _function_problems(folder, file, f"{at}/entry", entry.entry, [*inputs, *outputs, *prepared])
        if entry.prepare:
            problems += _function_problems(folder, file, f"{at}/prepare", entry.prepare, inputs)
    except SpecError as error:
        problems += error.problems
    return problems


def _function_problems(folder: Path, file: Path, at: str, entry: str, wanted: list[str]) -> list[Problem]:
    source, function = entry.split("::")
    functions = python_functions(folder / source)
    if function not in functions:
        return [Problem(file, f"no function {function!r} in {source}", at, nearest(function, functions))]
    signature = functions[function]
    where = f"{source}, line {signature.line}: {function}"
    refused = [] if signature.open else [name for name in wanted if name not in signature.names]
    if refused:
        return [Problem(file, f"{where} does not take {', '.join(refused)}", at, _takes(signature))]
    needless = sorted(signature.required - set(wanted))
    if needless:
        return [Problem(file, f"{where} asks for {', '.join(needless)}, which nobody passes", at)]
    closed = sorted(signature.positional_only & set(wanted))
    if closed:
        return [Problem(file, f"{where} takes {', '.join(closed)} by position alone; inputs come by keyword", at)]
    return []


def _takes(signature: Signature) -> str:
    return f"it takes {', '.join(signature.names) or 'nothing'}"


def support_names(definition: Definition) -> set[str]:
    """The names that a `supports` condition may use."""
    axes = {axis.name for axis in definition.axes} | {tensor.name for tensor in definition.inputs if tensor.is_switch}
    return axes | {f"{tensor.name}_dtype" for tensor in definition.inputs} | {"device", "contiguous"}


def solution_folders(extra: Path | None = None) -> list[Path]:
    """Every folder with a manifest: the project's own, its peers, and those of `--solutions-dir`."""
    roots = [paths.solutions_dir(), paths.peers_dir()]
    if extra is not None:
        if not extra.is_dir():
            raise SpecError(f"no folder {extra} (--solutions-dir)")
        extra = extra.resolve()  # "." has no name
        # A folder that is itself a solution is taken as one.
        if (extra / MANIFEST).is_file():
            return [*(folder for root in roots for folder in _below(root)), extra]
        if extra.resolve() not in [root.resolve() for root in roots]:
            roots.append(extra)
    return [folder for root in roots for folder in _below(root)]


def _below(root: Path) -> list[Path]:
    return sorted(file.parent for file in root.glob(f"*/{MANIFEST}"))


def solutions(extra: Path | None = None) -> tuple[dict[str, Solution], list[Problem]]:
    """All solutions by name, and the problems of those that cannot be used: one bad folder spoils no other."""
    found: dict[str, Solution] = {}
    problems: list[Problem] = []
    for folder in solution_folders(extra):
        try:
            solution = load_solution(folder)
        except SpecError as error:
            problems += error.problems or [Problem(folder, str(error))]
            continue
        if solution.name in found:
            other = paths.shown(found[solution.name].folder)
            problems.append(Problem(folder / MANIFEST, f"the name {solution.name!r} is taken by {other}", "/name"))
            continue
        found[solution.name] = solution
    return found, problems
