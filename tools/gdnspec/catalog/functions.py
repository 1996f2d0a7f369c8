"""Functions as solutions, without a manifest on disk: what a function takes decides how the judge calls it."""

import ast
import importlib.machinery
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.solutions import MANIFEST, UNKNOWN_LICENCE, Solution, source_hash
from gdnspec.catalog.source import Signature, python_functions
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.loading import read_text
from gdnspec.model.solution import Manifest

Call = Literal["out", "return"]


@dataclass(frozen=True)
class Functions(Solution):
    """Functions of files in a folder that has no manifest for them. `target`: what names it on the command line."""

    target: str = ""

    @cached_property
    def source_hash(self) -> str:
        def read(name: str) -> bytes:
            return self.manifest.model_dump_json().encode() if name == MANIFEST else (self.folder / name).read_bytes()

        return source_hash(self.manifest, read)


def functions(
    folder: Path, sources: list[str], entries: dict[str, dict[str, Any]], deterministic: bool = False,
    name: str = "function", target: str = "",
) -> Functions:  # fmt: skip
    """A solution whose entries are functions of these files."""
    triton = any("triton.jit" in read_text(folder / source) for source in sources)
    manifest = {
        "schema_version": 1, "name": name, "language": "triton" if triton else "python", "authors": ["this machine"],
        "license": UNKNOWN_LICENCE, "description": "A function that was given to gdnspec check.", "sources": sources,
        "requires": {"device": "any"}, "deterministic": deterministic, "entries": entries,
    }  # fmt: skip
    return Functions(Manifest.model_validate(manifest), folder, target=target)


def call_of(name: str, takes: Signature, definition: Definition) -> Call:
    """Whether the function returns the outputs or takes them. Raises `SpecError` if it does not take the inputs."""
    inputs = [tensor.name for tensor in definition.inputs]
    outputs = [tensor.name for tensor in definition.outputs]
    out = {*outputs} <= {*takes.names}
    unnamed = [x for x in inputs if x in takes.positional_only]
    missing = [x for x in inputs if x not in (*takes.names, *unnamed) and not takes.open]
    further = sorted(takes.required - {*inputs, *(outputs if out else ())})
    further += sorted(takes.positional_only - {*unnamed})
    if missing or further or unnamed:
        said = [f"takes {', '.join(unnamed)} by position alone"] if unnamed else []
        said += [f"lacks {', '.join(missing)}"] if missing else []
        said += [f"wants {', '.join(further)}, which the definition does not have"] if further else []
        called = f"{definition.name} calls it with ({', '.join(inputs)}) by keyword"
        raise SpecError(f"{name} {' and '.join(said)}: {called}")
    return "out" if out else "return"


def in_file(file: Path, function: str, names: list[str], target: str) -> Functions:
    """A function of a file as a solution of these definitions; if none is named, of the one with the function's name.
    Without a function, those with the names of definitions. Raises `SpecError`."""
    known = python_functions(file)
    if function and function not in known:
        raise SpecError([Problem(file, f"no function {function!r} at its top level", hint=nearest(function, known))])
    if function:
        pairs = [(name, function) for name in names or [function]]
        if not names and function not in definitions():
            raise SpecError(f"which definition does {function} serve? gdnspec check {target} DEFINITION")
    else:
        pairs = [(name, name) for name in names or definitions() if name in known]
        if not pairs and len(names) == 1 and len(known) == 1:
            pairs = [(names[0], next(iter(known)))]
        if not pairs:
            wanted = ", ".join(names) or "a definition"
            hint = f"name the function: gdnspec check {target}::FUNCTION {' '.join(names) or 'DEFINITION'}"
            raise SpecError([Problem(file, f"has no function that is named like {wanted}", hint=hint)])
    entries = {
        name: {"entry": f"{file.name}::{own}", "call": call_of(own, known[own], definition(name).definition)}
        for name, own in pairs
    }
    return functions(file.parent, _with_neighbours(file), entries, name=_word(function or file.stem), target=target)


def in_module(module: str, function: str, names: list[str], target: str, path: list[str]) -> Functions:
    """A function of an importable module, found on `path` without running it. Raises `SpecError`."""
    places, origin = path, ""
    for i, part in enumerate(module.split("."), start=1):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            raise SpecError(f"no module {'.'.join(module.split('.')[:i])!r}: name a file instead, as in kernel.py")
        places, origin = list(spec.submodule_search_locations or []), spec.origin or ""
    if not origin.endswith(".py"):
        raise SpecError(f"{module} is no Python file: name one, as in kernel.py")
    return in_file(Path(origin), function, names, target)


def _with_neighbours(file: Path) -> list[str]:
    """The file and those beside it that it imports by their bare names: a child gets copies of exactly these."""
    found = [file.name]
    for name in found:
        for node in ast.walk(ast.parse(read_text(file.parent / name))):
            words = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level:
                why = "imports relative to its package, and a child gets copies of files: import by the full name"
                raise SpecError([Problem(file.parent / name, why, f"line {node.lineno}")])
            if isinstance(node, ast.ImportFrom) and node.module:
                words = [node.module]
            beside = [f"{word.split('.')[0]}.py" for word in words]
            found += [one for one in dict.fromkeys(beside) if one not in found and (file.parent / one).is_file()]
    return found


def _word(text: str) -> str:
    """The text as a name of a solution."""
    word = re.sub(r"[^a-z0-9_]", "_", text.lower())[:64]
    return word if word[:1].isalpha() else f"f_{word}"[:64]
