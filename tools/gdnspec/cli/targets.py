"""What `gdnspec check` is given by position: definitions, and kernels by folder, file or module:function."""

import re
import sys
from pathlib import Path

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.functions import Functions, in_file, in_module
from gdnspec.catalog.solutions import MANIFEST, Solution, load_solution
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import load
from gdnspec.model.solution import Manifest

SINGLE = re.compile(r"(?<=\.py):(?=[A-Za-z_]\w*$)", re.ASCII)  # FILE.py:FUNCTION, as other programs write it
MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


def split(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The definitions among these words, and the kernels. What is neither counts as a misspelt definition."""
    words = [SINGLE.sub("::", word) for word in words or ()]
    kernels = [word for word in words if word not in definitions() and _is_kernel(word)]
    return [word for word in words if word not in kernels], kernels


def _is_kernel(word: str) -> bool:
    place = word.split("::")[0]
    return "/" in word or place.endswith((".py", ".cu")) or bool(MODULE.fullmatch(word)) or Path(place).is_dir()


def solution_at(target: str, names: list[str]) -> Solution:
    """The solution that a folder, a file or module:function names. `names`: the definitions that it is to serve. It
    runs no code of the solution. Raises `SpecError`."""
    place, _, function = target.partition("::")
    path = Path(place)
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            inside = sorted(file.parent.name for file in path.glob(f"*/{MANIFEST}"))
            if inside:
                hint = f"it holds solutions: name one, such as {path / inside[0]}, or --solutions-dir {path}"
            else:
                hint = "gdnspec new makes a folder with one"
            raise SpecError([Problem(path, f"has no {MANIFEST}", hint=hint)])
        return load_solution(path.resolve())
    if path.is_file():
        if not function and _belongs(path):
            return load_solution(path.resolve().parent)
        if path.suffix != ".py":
            raise SpecError([Problem(path, f"is no Python file, and no {MANIFEST} beside it lists it")])
        return in_file(path.resolve(), function, names, target)
    if MODULE.fullmatch(target):
        module, _, function = target.partition(":")
        return in_module(module, function, names, target, [str(Path.cwd()), *sys.path])
    raise SpecError([Problem(path, "no such file or folder", hint="gdnspec check FOLDER, FILE.py or MODULE:FUNCTION")])


def _belongs(file: Path) -> bool:
    """Whether the manifest beside the file lists it."""
    manifest = file.parent / MANIFEST
    return manifest.is_file() and file.name in (MANIFEST, *load(Manifest, manifest).sources)


def words_for(solution: Solution, target: str) -> list[str]:
    """The words that select the solution in another `gdnspec check`."""
    if isinstance(solution, Functions):
        place, double, function = target.partition("::")
        return [str(Path(place).resolve()) + double + function] if Path(place).exists() else [target]
    return [str(solution.folder)]
