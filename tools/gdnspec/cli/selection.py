"""Which workloads and which solutions a command was asked for."""

from collections.abc import Callable
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
    """What DEFINITION.., --suite, --workload and --workloads mean; `SpecError` where they mean nothing.

    `fresh` draws workloads that join every suite, and may be named as others are.
    """
    found = [definition(name) for name in names] if names else list(definitions().values())
    known_suites = (*SUITES, "fresh", "all") if fresh else (*SUITES, "all")
    for name in suite or ():
        if name not in known_suites:
            raise SpecError(f"no suite {name!r} ({nearest(name, known_suites)})")
    if file is not None:
        if len(found) != 1:
            raise SpecError("--workloads goes with one definition: name it")
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
        raise SpecError(f"no workload in {', '.join(sorted(suites - {'fresh'}))}: gdnspec list workloads")
    return [(item, group) for item, group in chosen if group]


def heads_of(found: Found, name: str) -> Preset:
    """What --preset means for a definition. Raises `SpecError`."""
    preset = found.family.preset(name)
    if preset is None:
        raise SpecError(f"no preset {name!r} ({nearest(name, found.family.presets)})")
    return preset


def lines_of(file: Path, lines: list[Workload], suite: list[str] | None, names: list[str] | None) -> list[Workload]:
    """The lines of a file that --suite and --workload mean; all where neither is given. Raises `SpecError`."""
    for name in suite or ():
        if name not in SUITES:
            raise SpecError(f"no suite {name!r} ({nearest(name, SUITES)})")
    known = [line.name for line in lines]
    for name in names or ():
        if name not in known:
            raise SpecError([Problem(file, f"no workload {name!r}", hint=nearest(name, known))])
    return [line for line in lines if (not suite or line.suite in suite) and (not names or line.name in names)]


def chosen_solutions(wanted: list[str] | None, extra: Path | None) -> tuple[list[Solution], list[object]]:
    """What --solution and --solutions-dir mean, and the problems of those that cannot be used. Peers are named or not
    meant."""
    known, problems = solutions(extra)
    if wanted is None:
        return [solution for solution in known.values() if not solution.is_peer], list(problems)
    for name in wanted:
        base, _, variant = name.partition(":")
        mine = [problem for problem in problems if base in (problem.file.parent.name, problem.file.name)]
        if mine:  # a name that is taken is one of these: which of the two was meant, nobody knows
            raise SpecError(mine)
        if variant and base in known and name not in known:
            raise no_variant(known[base], variant)
        if name not in known:
            raise SpecError(f"no solution {name!r} ({nearest(name, known)})")
    return [known[name] for name in dict.fromkeys(wanted)], []
