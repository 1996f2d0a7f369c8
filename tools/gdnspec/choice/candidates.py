"""Who may serve a call: solutions with an entry for the definition, and why the others may not."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.catalog.supports import unmet
from gdnspec.model.elements import Scope
from gdnspec.model.errors import SpecError, nearest

FORCED = "GDNSPEC_SOLUTION"  # the environment variable that names solutions


@dataclass(frozen=True)
class Asked:
    """A call: its axes as far as they are known, and where it runs. `device` is cpu or cuda; `slug` names the device as
    traces do."""

    found: Found
    scope: Scope
    device: str
    slug: str
    contiguous: bool = True
    sequence_lengths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Candidates:
    """`serving`: the solutions that may serve. `refused`: the others that have an entry, and why."""

    serving: list[Solution]
    refused: dict[str, str]


def candidates(
    asked: Asked, refuse: Callable[[Solution], str | None] = lambda solution: None, peers: bool = False
) -> Candidates:
    """The project's own solutions, and those of other libraries if `peers`. `refuse`: what else speaks against one,
    such as a machine without its packages."""
    serving, refused = [], {}
    for solution in entries(asked.found):
        if solution.is_peer and not peers:
            continue
        why = refusal(asked, solution) or refuse(solution)
        if why is None:
            serving.append(solution)
        else:
            refused[solution.name] = why
    return Candidates(serving, refused)


def entries(found: Found) -> tuple[Solution, ...]:
    """All solutions, variants and peers with an entry for the definition, as they were when a process first asked."""
    return _entries(found.definition.name, paths.solutions_dir())


@cache  # a server asks again for each new number of tokens
def _entries(name: str, root: Path) -> tuple[Solution, ...]:
    return tuple(one for one in solutions()[0].values() if name in one.manifest.entries)


def from_environment(found: Found) -> str | None:
    """The first solution in GDNSPEC_SOLUTION that serves the definition; None if none does. A program calls several
    definitions, so the variable may list several names. Raises `SpecError` if there is no such solution."""
    names = [name.strip() for name in os.environ.get(FORCED, "").split(",") if name.strip()]
    serves = {solution.name for solution in entries(found)}
    known = {} if serves.issuperset(names) else solutions()[0]
    for name in names:
        if name not in serves and name not in known:
            raise SpecError(f"{FORCED}: no solution {name!r} ({nearest(name, known)})")
    return next((name for name in names if name in serves), None)


def forced(asked: Asked, name: str) -> Solution:
    """The solution of this name. Raises `SpecError` if there is none, or if it cannot serve the call."""
    found = next((solution for solution in entries(asked.found) if solution.name == name), None)
    if found is None:
        known, _ = solutions()
        if name not in known:
            raise SpecError(f"no solution {name!r} ({nearest(name, known)})")
        raise SpecError(f"{name} does not serve {asked.found.definition.name}: {serving(asked.found)}")
    why = refusal(asked, found)
    if why is not None:
        raise SpecError(f"{name} cannot serve this call: {why}")
    return found


def refusal(asked: Asked, solution: Solution) -> str | None:
    """Why a solution with an entry for the definition cannot serve the call, by its manifest; None if it can."""
    requires = solution.manifest.requires
    if requires.device not in ("any", asked.device):
        return f"it runs only on {requires.device}"
    if solution.manifest.language == "triton" and asked.device == "cpu":
        return "it is written in Triton, and runs only on cuda"
    definition = asked.found.definition
    entry = solution.manifest.entries[definition.name]
    return unmet(entry, definition, asked.scope, asked.device, asked.contiguous, partial=True)


def serving(found: Found) -> str:
    """What serves the definition, on one line: every own solution with its device and conditions."""
    said = []
    for solution in entries(found):
        if solution.is_peer:
            continue
        manifest = solution.manifest
        device = "cuda" if manifest.language == "triton" else manifest.requires.device
        conditions = manifest.entries[found.definition.name].supports
        said.append(f"{solution.name} ({', '.join([f'device {device}', *conditions])})")
    return f"{found.definition.name} is served by {'; '.join(said) or 'no solution'}"
