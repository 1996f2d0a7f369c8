"""What a solution lacks before it can be submitted, beside what `gdnspec validate` asks of every one."""

from collections.abc import Iterable

from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import MANIFEST, Solution
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.solution import PLACEHOLDER_AUTHOR, PLACEHOLDER_TEXT, Manifest
from gdnspec.submission.bundle import folder_files


def require_complete(solution: Solution) -> None:
    """Raises `SpecError` with everything that is missing."""
    file = solution.folder / MANIFEST
    problems = [Problem(file, what, place, hint) for place, what, hint in _missing(solution.manifest)]
    try:
        folder_files(solution)
    except SpecError as error:
        problems += error.problems
    for name in solution.manifest.entries:
        found = definition(name)
        if not found.workloads_file.is_file():
            problems.append(Problem(found.workloads_file, "no workloads: nothing can be shown on this definition"))
    if problems:
        raise SpecError(problems)


def _missing(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
    for i, author in enumerate(manifest.authors):
        if author == PLACEHOLDER_AUTHOR:
            yield f"/authors/{i}", "an author is missing: it is as gdnspec new wrote it", "who is to be credited?"
    if manifest.description.endswith(PLACEHOLDER_TEXT):
        yield (
            "/description",
            "a description is missing: it is as gdnspec new wrote it",
            "what sets this solution apart?",
        )
    if not manifest.license.strip():
        yield "/license", "a licence is missing", "such as Apache-2.0"
