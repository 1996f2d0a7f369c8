"""Finds solutions, one folder each, and checks their entry points without running them."""

import hashlib
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gdnspec import paths
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.source import Signature, cuda_exports, python_functions
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.expression import parse
from gdnspec.model.loading import is_file, load
from gdnspec.model.solution import Entry, Manifest

MANIFEST = "solution.json"
TRACES = "traces"  # the folder, beside the manifest
Settings = dict[str, dict[str, Any]]  # `defines` and `arguments`, by name
MAX_SOURCE_BYTES = 10 * 1024 * 1024
UNKNOWN_LICENCE = "unknown"


@dataclass(frozen=True)
class Solution:
    """A solution or a variant: its manifest, and its folder. A variant has its own entries and conditions."""

    manifest: Manifest
    folder: Path = field(compare=False)
    variant: str | None = None

    @property
    def name(self) -> str:
        """`NAME`, or `NAME:VARIANT`."""
        return self.manifest.name if self.variant is None else f"{self.manifest.name}:{self.variant}"

    @property
    def settings(self) -> Settings:
        return settings(self.manifest, self.variant)

    @property
    def traces(self) -> Path:
        """The folder of its traces; a variant has a subfolder there."""
        return traces_below(self.folder, self.variant)

    @property
    def variants(self) -> "list[Solution]":
        """The variants of a solution, as solutions; a variant has none."""
        if self.variant is not None:
            return []
        return [Solution(self.manifest.as_variant(name), self.folder, name) for name in self.manifest.variants]

    def named(self, name: str) -> "Solution | None":
        """The solution itself or one of its variants, by name."""
        return next((one for one in (self, *self.variants) if one.name == name), None)

    @property
    def is_peer(self) -> bool:
        """Whether it is another library, for comparison. Commands run it only if it is named."""
        return self.folder.parent == paths.peers_dir()

    @cached_property
    def source_hash(self) -> str:
        return source_hash(self.manifest, lambda name: (self.folder / name).read_bytes(), self.variant)


def source_hash(manifest: Manifest, read: Callable[[str], bytes], variant: str | None = None) -> str:
    """sha256 over the manifest, every source, and the name of a variant. Verdicts and traces belong to this hash."""
    digest = hashlib.sha256()
    for name in (MANIFEST, *sorted(manifest.sources)):
        content = read(name)
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    if variant is not None:
        digest.update(f"variant\0{variant}\0".encode())
    return digest.hexdigest()


def settings(manifest: Manifest, variant: str | None) -> Settings:
    """The macros and arguments of a variant; empty for the solution itself."""
    if variant is None:
        return {"defines": {}, "arguments": {}}
    own = manifest.variants[variant]
    return {"defines": own.defines, "arguments": own.arguments}


def traces_below(folder: Path, variant: str | None) -> Path:
    """The folder of the traces of a solution or variant, below its folder."""
    return folder / TRACES / (variant or "")


def load_variant(folder: Path, variant: str | None) -> Solution:
    """Like `load_solution`, or one of its variants. Raises `SpecError` if it has no such variant."""
    return as_variant(load_solution(folder), variant)


def as_variant(solution: Solution, variant: str | None) -> Solution:
    """The solution itself, or one of its variants. Raises `SpecError` if it has no such variant."""
    if variant is None:
        return solution
    if variant not in solution.manifest.variants:
        raise no_variant(solution, variant)
    return Solution(solution.manifest.as_variant(variant), solution.folder, variant)


def no_variant(solution: Solution, variant: str) -> SpecError:
    """The error for an unknown variant, with the nearest name."""
    hint = nearest(variant, solution.manifest.variants)
    return SpecError([Problem(solution.folder / MANIFEST, f"no variant {variant!r}", "/variants", hint)])


def load_solution(folder: Path) -> Solution:
    """One solution. Raises `SpecError` with every problem of its manifest and entry points."""
    file = folder / MANIFEST
    manifest = load(Manifest, file)
    problems = []
    if manifest.name != folder.name:
        message = f"the name {manifest.name!r} differs from its folder's, {folder.name!r}"
        problems.append(Problem(file, message, "/name"))
    problems += _licence_problems(file, manifest.license)
    total = 0
    for i, name in enumerate(manifest.sources):
        source = folder / name
        if not is_file(source):
            problems.append(Problem(file, f"no file {name!r} in the solution's folder", f"/sources/{i}"))
        elif not is_plain(folder, name):
            hint = "copy the file; for two builds of the same sources, declare a variant"
            problems.append(Problem(file, f"{name!r} is a symbolic link", f"/sources/{i}", hint))
        elif why := _unreadable(source):
            problems.append(Problem(file, f"{name!r} cannot be read: {why}", f"/sources/{i}"))
        else:
            total += source.stat().st_size
    if total > MAX_SOURCE_BYTES:
        problems.append(Problem(file, f"the sources have more than {MAX_SOURCE_BYTES >> 20} MiB together", "/sources"))
    if not problems and manifest.language == "triton" and not _has_triton(folder, manifest):
        message = 'the language is "triton", but no source has a Triton kernel'
        problems.append(Problem(file, message, "/language", "decorate one with @triton.jit or @gluon.jit"))
    if not problems:
        for name, entry in manifest.entries.items():
            problems += _entry_problems(folder, file, name, entry)
    if not problems:
        for name in manifest.variants:
            problems += _variant_problems(folder, file, manifest, name)
    if problems:
        raise SpecError(problems)
    return Solution(manifest, folder)


def _licence_problems(file: Path, text: str) -> list[Problem]:
    """A licence is an expression of SPDX identifiers, or "unknown", which imports write."""
    from packaging import licenses  # a table of all identifiers: not before a manifest is read

    if text == UNKNOWN_LICENCE:
        return []
    try:
        licenses.canonicalize_license_expression(text)
    except licenses.InvalidLicenseExpression:
        message = f"{text!r} is no licence of the SPDX list"
        hint = "for example Apache-2.0, MIT OR Apache-2.0, or LicenseRef-OWN-NAME for one that is not in the list"
        return [Problem(file, message, "/license", hint)]
    return []


def _unreadable(source: Path) -> str:
    """Why the source cannot be read, or "". Hashing it later would end the whole command, not only this solution."""
    try:
        with source.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def is_plain(folder: Path, name: str) -> bool:
    """Whether a file below the folder is a regular file, and no part of its path is a symbolic link."""
    path = folder
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            return False
    return stat.S_ISREG(path.stat().st_mode)


def _has_triton(folder: Path, manifest: Manifest) -> bool:
    """Whether a source has a Triton kernel. Triton solutions skip the workloads that take the interpreter minutes."""
    marks = (b"triton.jit", b"gluon.jit", b"import jit")
    return any(mark in (folder / name).read_bytes() for name in manifest.sources for mark in marks)


def _entry_problems(folder: Path, file: Path, name: str, entry: Entry) -> list[Problem]:
    at = f"/entries/{name}"
    if name not in definitions():
        return [Problem(file, f"no definition {name!r}", at, nearest(name, definitions()))]
    definition = definitions()[name].definition
    problems = _unknown_names(file, f"{at}/supports", entry.supports, definition)
    try:
        if entry.file.endswith(".cu"):
            exports = cuda_exports(folder / entry.file)
            if entry.function not in exports:
                message = f"{entry.file} does not export {entry.function!r}"
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


def _variant_problems(folder: Path, file: Path, manifest: Manifest, name: str) -> list[Problem]:
    """The problems of a variant, in a manifest that has no other problems."""
    variant, at = manifest.variants[name], f"/variants/{name}"
    problems = []
    for served, conditions in variant.supports.items():
        definition = definitions()[served].definition
        problems += _unknown_names(file, f"{at}/supports/{served}", conditions, definition)
    for served, entry in manifest.as_variant(name).entries.items() if variant.arguments else ():
        definition = definitions()[served].definition
        tensors = {tensor.name for tensor in (*definition.inputs, *definition.outputs)}
        taken = sorted(tensors & set(variant.arguments))
        if taken:
            problems.append(
                Problem(file, f"{served} already has an input or output of that name", f"{at}/arguments/{taken[0]}")
            )
            continue
        for spec in filter(None, (entry.entry, entry.prepare)):
            problems += _argument_problems(folder, file, at, spec, list(variant.arguments))
    return problems


def _argument_problems(folder: Path, file: Path, at: str, spec: str, arguments: list[str]) -> list[Problem]:
    source, function = spec.split("::")
    signature = python_functions(folder / source)[function]
    where = f"{source}, line {signature.line}: {function}"
    return [
        Problem(file, f"{where} does not take {name}", f"{at}/arguments/{name}", nearest(name, signature.names))
        for name in arguments
        if name not in signature.names and not signature.open
    ]


def _unknown_names(file: Path, at: str, conditions: list[str], definition: Definition) -> list[Problem]:
    return [
        Problem(file, f"{unknown!r} is not an axis, a switch, `<input>_dtype`, `device` or `contiguous`", f"{at}/{i}")
        for i, text in enumerate(conditions)
        for unknown in sorted(parse(text).names - support_names(definition))
    ]


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
        message = f"{where} needs {', '.join(needless)}, which the judge does not pass: give it a default"
        return [Problem(file, message, at)]
    closed = sorted(signature.positional_only & set(wanted))
    if closed:
        message = f"{where} takes {', '.join(closed)} only by position, but the judge passes inputs by keyword"
        return [Problem(file, message, at)]
    return []


def _takes(signature: Signature) -> str:
    return f"it takes {', '.join(signature.names) or 'nothing'}"


def support_names(definition: Definition) -> set[str]:
    """The names that a `supports` condition may use."""
    axes = {axis.name for axis in definition.axes} | {tensor.name for tensor in definition.inputs if tensor.is_switch}
    return axes | {f"{tensor.name}_dtype" for tensor in definition.inputs} | {"device", "contiguous"}


def solution_folders(extra: Path | None = None) -> list[Path]:
    """Every folder with a manifest: the project's own, its peers, those of `--solutions-dir`. Raises `SpecError`."""
    roots = [paths.solutions_dir(), paths.peers_dir()]
    if extra is not None:
        if not extra.is_dir():
            raise SpecError(f"--solutions-dir: no such folder: {extra}")
        extra = extra.resolve()  # the path "." has no name
        # The folder may itself be a solution.
        if (extra / MANIFEST).is_file():
            return [*(folder for root in roots for folder in _below(root)), extra]
        if extra.resolve() not in [root.resolve() for root in roots]:
            roots.append(extra)
    return [folder for root in roots for folder in _below(root)]


def _below(root: Path) -> list[Path]:
    return sorted(file.parent for file in root.glob(f"*/{MANIFEST}"))


def solutions(extra: Path | None = None) -> tuple[dict[str, Solution], list[Problem]]:
    """All solutions and variants by name, and the problems of the folders that cannot be used. A bad folder does not
    affect the others."""
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
            problems.append(Problem(folder / MANIFEST, f"{other} already has the name {solution.name!r}", "/name"))
            continue
        found |= {one.name: one for one in (solution, *solution.variants)}
    return found, problems
