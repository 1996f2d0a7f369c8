"""The workloads and solutions that a command's options select."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.solutions import Solution, no_variant, solutions
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.preset import Preset
from gdnspec.model.workload import SUITES, Workload

Selected = list[tuple[Found, list[Workload]]]


def select(
    names: list[str] | None,
    suite: list[str] | None,
    workload: list[str] | None,
    file: Path | None,
    fresh: Callable[[Found], list[Workload]] | None = None,
) -> Selected:
    """The workloads that DEFINITION.., --suite, --workload and --workloads select, by definition.

    `fresh` draws workloads that are added to every suite and can be named like others.

    Raises:
        SpecError: A name is unknown, or nothing is selected.
    """
    found = [definition(name) for name in names] if names else list(definitions().values())
    known_suites = (*SUITES, "fresh", "all") if fresh else (*SUITES, "all")
    require_suites(suite, known_suites)
    if file is not None:
        if len(found) != 1:
            raise SpecError("--workloads holds workloads of one definition: name that DEFINITION")
        lines = [(found[0].at(file), load_workloads(file, found[0]))]
    else:
        lines = [(item, [*workloads(item), *(fresh(item) if fresh else ())]) for item in found]
    everything = file is not None or workload is not None
    suites = {*(suite or (SUITES if everything else ("smoke",))), "fresh"}
    if "all" in suites:
        suites = {*SUITES, "fresh"}
    if workload is not None:
        known = [line.name for _, group in lines for line in group]
        for name in workload:
            if name not in known:
                raise SpecError(f"no workload {name!r} ({nearest(name, known)})")
    chosen = [
        (item, [w for w in group if w.suite in suites and (workload is None or w.name in workload)])
        for item, group in lines
    ]
    if not any(group for _, group in chosen):
        raise SpecError(f"no workload in {', '.join(sorted(suites - {'fresh'}))}: see gdnspec list workloads")
    return [(item, group) for item, group in chosen if group]


def require_suites(names: list[str] | None, known: Sequence[str] = SUITES) -> None:
    """Raises `SpecError` for the first name that is not a suite."""
    for name in names or ():
        if name not in known:
            raise SpecError(f"no suite {name!r} ({nearest(name, known)})")


def heads_of(found: Found, name: str) -> Preset:
    """The preset that --preset names. Raises `SpecError` if there is none."""
    preset = found.family.preset(name)
    if preset is None:
        raise SpecError(f"no preset {name!r} ({nearest(name, found.family.presets)})")
    return preset


def lines_of(file: Path, lines: list[Workload], suite: list[str] | None, names: list[str] | None) -> list[Workload]:
    """The lines of a file that --suite and --workload select; all if neither is given. Raises `SpecError`."""
    require_suites(suite)
    known = [line.name for line in lines]
    for name in names or ():
        if name not in known:
            raise SpecError([Problem(file, f"no workload {name!r}", hint=nearest(name, known))])
    return [line for line in lines if (not suite or line.suite in suite) and (not names or line.name in names)]


def chosen_solutions(wanted: list[str] | None, extra: Path | None) -> tuple[list[Solution], list[object]]:
    """The solutions that --solution and --solutions-dir select, and the problems of unusable ones. Peers (adapters to
    other libraries) are selected only by name."""
    known, problems = solutions(extra)
    if wanted is None:
        return [solution for solution in known.values() if not solution.is_peer], list(problems)
    for name in wanted:
        base, _, variant = name.partition(":")
        mine = [problem for problem in problems if base in (problem.file.parent.name, problem.file.name)]
        if mine:  # also if two folders have this name: it is unclear which one is meant
            raise SpecError(mine)
        if variant and base in known and name not in known:
            raise no_variant(known[base], variant)
        if name not in known:
            raise SpecError(f"no solution {name!r} ({nearest(name, known)})")
    return [known[name] for name in dict.fromkeys(wanted)], []
