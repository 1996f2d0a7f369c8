"""Find what a solution or its evidence lacks before it can be submitted, in addition to `gdnspec validate`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import MANIFEST, Solution
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs import fresh
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import PLACEHOLDER_AUTHOR, PLACEHOLDER_TEXT, Manifest
from gdnspec.submission.bundle import folder_files
from gdnspec.submission.evidence import SUITES, Evidence, Question, asked_of, doubled


def require_complete(solution: Solution) -> None:
    """Raises `SpecError` with everything that a solution lacks."""
    file = solution.folder / MANIFEST
    problems = [Problem(file, what, place, hint) for place, what, hint in _missing(solution.manifest)]
    try:
        folder_files(solution)
    except SpecError as error:
        problems += error.problems
    for name in asked_of(solution):
        found = definition(name)
        if not found.workloads_file.is_file():
            problems.append(
                Problem(found.workloads_file, "no workloads, so no solution of this definition can be judged")
            )
    if problems:
        raise SpecError(problems)


def _missing(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
    for i, author in enumerate(manifest.authors):
        if author == PLACEHOLDER_AUTHOR:
            yield f"/authors/{i}", "the author is still the text that gdnspec new wrote", "name who is to be credited"
    if manifest.description.endswith(PLACEHOLDER_TEXT):
        yield (
            "/description",
            "the description is still the text that gdnspec new wrote",
            "say what is special about this solution",
        )
    if not manifest.license.strip():
        yield "/license", "the licence is missing", "for example Apache-2.0"


def incomplete(evidence: Evidence, served: Mapping[str, list[str]], verdicts: Iterable[CheckResult]) -> list[str]:
    """What shows that the verdicts are not those of one complete run: verdicts that occur twice, are missing, are for
    something else, or come from several devices. `served`: definitions, by the solution or variant that serves them."""
    results = list(verdicts)
    found = doubled(results)
    slugs = sorted({r.device for r in results})
    if len(slugs) > 1:
        found.append(f"verdicts from several devices: {', '.join(slugs)}")
    strange = sorted({r.definition for r in results} - set(evidence.definitions))
    found += [f"verdicts on {name}, which it does not serve" for name in strange]
    # The wanted workloads are known only if they have not changed since the evidence was recorded.
    known = {name for name, asked in evidence.definitions.items() if asked == Question.of(definition(name))}
    for solution, definitions in served.items():
        for name in filter(known.__contains__, definitions):
            given = Counter(r.workload for r in results if (r.solution, r.definition) == (solution, name))
            found += _beside(name, given, set(_wanted(name, evidence)))
    return found


def _wanted(name: str, evidence: Evidence) -> Iterator[str]:
    """The workloads for which a run gives a verdict, even if it is UNSUPPORTED."""
    found = definition(name)
    yield from (line.name for line in workloads(found) if line.suite in SUITES)
    yield from fresh.names(found, "cuda" if evidence.environment.get("driver") else "cpu")  # only a GPU has a driver


def _beside(name: str, given: Iterable[str], wanted: set[str]) -> Iterator[str]:
    missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
    if missing:
        yield f"{len(missing)} of {len(wanted)} verdicts on {name} are missing, for example on {missing[0]}"
    if unknown:
        yield f"{len(unknown)} verdicts on workloads that {name} does not have, for example {unknown[0]}"
