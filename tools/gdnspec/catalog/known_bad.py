"""The solutions that test the judge: tests/known_bad/ and tests/honest/."""

from dataclasses import dataclass
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.solutions import MANIFEST, Solution, load_solution
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import load
from gdnspec.model.rejection import KnownBad

KNOWN_BAD_FILE = "known_bad.json"

# Where the README of known-bad solutions has the kill matrix.
MATRIX_BEGIN = "<!-- kill matrix: begin (gdnspec selftest --markdown writes it) -->"
MATRIX_END = "<!-- kill matrix: end -->"


@dataclass(frozen=True)
class Bad:
    """A solution, and what is known of its fault."""

    solution: Solution
    known: KnownBad


def known_bad() -> list[Bad]:
    """All of them by name; raises `SpecError` with every problem."""
    return [Bad(solution, load(KnownBad, solution.folder / KNOWN_BAD_FILE)) for solution in _all(paths.known_bad_dir())]


def honest() -> list[Solution]:
    """Right solutions, in the project's own and in tests/honest/."""
    return [*_all(paths.solutions_dir()), *_all(paths.honest_dir())]


def _all(root: Path) -> list[Solution]:
    found: list[Solution] = []
    problems = [
        Problem(file.parent, f"has {file.name} and no {MANIFEST}")
        for file in sorted(root.glob(f"*/{KNOWN_BAD_FILE}"))
        if not (file.parent / MANIFEST).is_file()
    ]
    for file in sorted(root.glob(f"*/{MANIFEST}")):
        try:
            found.append(load_solution(file.parent))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    if not found:
        raise SpecError([Problem(root, "holds no solution")])
    return found
