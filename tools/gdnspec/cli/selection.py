"""The workloads and solutions that a command's options select."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.families import Family
from gdnspec.catalog.solutions import Solution, no_variant, solutions
from gdnspec.catalog.workloads import load_workloads, refuse_sessions, workloads
from gdnspec.model.batch_invariance import PIECE
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.preset import Preset
from gdnspec.model.workload import SUITES, Workload

Selected = list[tuple[Found, list[Workload]]]


FRESH = "fresh"  # a suite, and the start of the names of its workloads


def select(
    names: list[str] | None,
    suite: list[str] | None,
    workload: list[str] | None,
    file: Path | None,
    draws: bool = False,
) -> Selected:
    """The workloads that DEFINITION.., --suite, --workload and --workloads select, by definition.

    `draws`: fresh workloads are drawn later and can be named too, so a definition may have no line yet.

    Raises:
        SpecError: A name is unknown, or nothing is selected.
    """
    found = [definition(name) for name in names] if names else list(definitions().values())
    require_suites(suite, (*SUITES, FRESH, "all") if draws else (*SUITES, "all"))
    if file is not None:
        if len(found) != 1:
            refuse_sessions(file)
            raise SpecError("--workloads holds workloads of one definition: name that DEFINITION")
        lines = [(found[0].at(file), load_workloads(file, found[0]))]
    else:
        lines = [(item, workloads(item)) for item in found]
    everything = file is not None or workload is not None
    suites = {*(suite or (SUITES if everything else ("smoke",)))}
    if "all" in suites:
        suites = {*SUITES}
    known = {line.name for _, group in lines for line in group}
    for name in workload or ():
        if name not in known and not (draws and file is None and name.startswith(FRESH)):
            raise SpecError(f"no workload {name!r} ({nearest(name, sorted(known))})")
    chosen = [
        (item, [w for w in group if w.suite in suites and (workload is None or w.name in workload)])
        for item, group in lines
    ]
    if draws and file is None:
        return chosen
    return some(chosen)


def with_fresh(selected: Selected, draw: Callable[[Found], list[Workload]], workload: list[str] | None) -> Selected:
    """The selection with the lines that `draw` draws, or those of them that --workload names. Raises `SpecError`."""
    drawn = [(item, draw(item)) for item, _ in selected]
    names = {line.name for _, group in (*selected, *drawn) for line in group}
    for name in workload or ():
        if name not in names:
            raise SpecError(f"no workload {name!r} ({nearest(name, sorted(names))})")
    return [
        (item, [*group, *(line for line in fresh if workload is None or line.name in workload)])
        for (item, group), (_, fresh) in zip(selected, drawn, strict=True)
    ]


def with_pieces(selected: Selected) -> Selected:
    """The selection, with the shortest other workload that can be cut for each definition whose lines cannot: a prefill
    in pieces ends them at multiples of `PIECE` tokens."""
    more = []
    for item, group in selected:
        definition = item.definition
        if definition.conventions.packing != "ragged" or definition.stage == "backward" or any(map(_is_long, group)):
            more.append((item, group))
            continue
        able = [line for line in workloads(item) if line.suite == "conformance" and _is_long(line)]
        more.append((item, [*group, *sorted(able, key=lambda line: sum(line.sequence_lengths or ()))[:1]]))
    return more


def _is_long(line: Workload) -> bool:
    return max(line.sequence_lengths or (0,)) > PIECE


def some(chosen: Selected) -> Selected:
    """The definitions that have a workload. Raises `SpecError` if none has."""
    if not any(group for _, group in chosen):
        raise SpecError("no workload has these names, suites and words: see gdnspec list workloads")
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
        raise no_preset(found.family, name)
    return preset


def no_preset(family: Family, name: str) -> SpecError:
    """The error for a name that is none of the family's presets."""
    return _not_of(family, name, "preset", lambda other: other.presets)


def no_regime(family: Family, name: str) -> SpecError:
    """The error for a name that is none of the family's regimes."""
    return _not_of(family, name, "regime", lambda other: other.about.regimes)


def _not_of(family: Family, name: str, what: str, names: Callable[[Family], Collection[str]]) -> SpecError:
    """A name of another family is no misspelling: a similar name of this one would mislead."""
    others = sorted({found.family.name for found in definitions().values() if name in names(found.family)})
    if others:
        listed = f"gdnspec list {what}s shows those of {family.name}"
        return SpecError(f"{name!r} is a {what} of the family {' and '.join(others)}, not of {family.name}: {listed}")
    return SpecError(f"no {what} {name!r} ({nearest(name, names(family))})")


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
            where = "" if extra else "; --solutions-dir DIR adds a folder of your own"
            raise SpecError(f"no solution {name!r} ({nearest(name, known)}){where}")
    return [known[name] for name in dict.fromkeys(wanted)], []


def unserved(names: list[str], chosen: list[Solution]) -> str:
    """The message that no chosen solution serves these definitions. One that was named is told by what it serves."""
    asked = " or ".join(names) if len(names) <= 3 else "a chosen definition"
    if len(chosen) == 1:
        return f"{chosen[0].name} does not serve {asked}, only {', '.join(chosen[0].manifest.entries)}"
    return f"no chosen solution serves {asked}: gdnspec list solutions shows what each serves"
