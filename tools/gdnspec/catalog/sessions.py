"""Loads sessions, the lines of definitions/<family>/sessions.jsonl, and checks each against its family."""

from pathlib import Path

from gdnspec.catalog.definitions import Found, applies, definition
from gdnspec.catalog.families import FAMILY_FILE, Family, families
from gdnspec.model.budget import METRICS, freeze
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer, nearest
from gdnspec.model.loading import load_lines, starts_with
from gdnspec.model.session_line import SessionLine

SESSIONS_FILE = "sessions.jsonl"
EMPTY = "is empty: a file of sessions has one JSON object per line"
MAKE = "gdnspec workloads generate --sessions writes such a file"
WORKLOADS = "gdnspec check DEFINITION --workloads FILE judges workloads"


def sessions_file(family: Family) -> Path:
    """The file of the sessions that a family ships."""
    return family.folder / SESSIONS_FILE


def with_sessions() -> dict[str, Family]:
    """The families that say which definitions serve a session, by name."""
    return {name: family for name, family in families().items() if family.about.sessions}


def serving(family: Family, line: SessionLine) -> dict[str, Found]:
    """The definition of each kind of call that a session makes, and of the decode whose pool holds the states. Raises
    `SpecError` if the family names none."""
    return {kind: definition(name) for kind, name in names(family, line).items()}


def names(family: Family, line: SessionLine) -> dict[str, str]:
    """Like `serving`, by name. Raises `PlacedError`."""
    known = family.about.sessions.get(line.states)
    if known is None:
        raise PlacedError("/states", f"the family {family.name} has no sessions with {line.states} states")
    wanted = {*line.kinds, "decode"} | ({"convolve"} if line.convolution else set())
    found = {}
    for kind in sorted(wanted):
        name = {str(key): value for key, value in known.items()}.get(kind)
        if name is None:
            message = f"no definition of the family {family.name} serves {kind} with {line.states} states"
            raise PlacedError("/states", message)
        found[kind] = name
    return found


def load_sessions(file: Path, family: Family, as_frozen: bool = True) -> list[SessionLine]:
    """All sessions of a file. `as_frozen`: a frozen line must still be as it was frozen. Raises `SpecError` with every
    problem, and for a file without a line."""
    try:
        rows = load_lines(SessionLine, file)
    except SpecError:
        if starts_with(file, "axes"):
            raise SpecError([Problem(file, "is a file of workloads, not of sessions", hint=WORKLOADS)]) from None
        raise
    problems = [] if rows else [Problem(file, EMPTY, hint=MAKE)]
    seen: dict[str, int] = {}
    for number, line in rows:
        if line.name in seen:
            message = f"line {seen[line.name]} already has the name {line.name!r}"
            problems.append(Problem(file, message, f"line {number}: /name"))
        seen.setdefault(line.name, number)
        try:
            check(line, family, as_frozen)
        except PlacedError as error:
            place = f"line {number}:" + (f" {error.pointer}" if error.pointer else "")
            problems.append(Problem(file, error.message, place.rstrip(":"), error.hint))
    if problems:
        raise SpecError(problems)
    return [line for _, line in rows]


def sessions(family: Family) -> list[SessionLine]:
    """The sessions that a family ships; empty if it has no file. Raises `SpecError`."""
    file = sessions_file(family)
    return load_sessions(file, family) if file.is_file() else []


def check(line: SessionLine, family: Family, as_frozen: bool = True) -> None:
    """Raises `PlacedError` if a session does not fit its family, or, with `as_frozen`, what it was frozen with."""
    preset = family.preset(line.preset)
    if preset is None:
        raise PlacedError("/preset", f"no preset {line.preset!r}", nearest(line.preset, family.presets))
    if line.regime not in family.about.regimes:
        raise PlacedError("/regime", f"no regime {line.regime!r}", nearest(line.regime, family.about.regimes))
    served = {kind: definition(name) for kind, name in names(family, line).items()}
    for found in served.values():
        if not applies(preset, found.definition):
            lacking = [axis for axis in found.definition.const_axes() if axis not in preset.axes]
            why = f"gives axis {lacking[0]!r} no value" if lacking else f"is not for {found.definition.stage}"
            raise PlacedError("/preset", f"preset {line.preset!r} {why}, and {found.definition.name} serves a step")
        _check_scalars(line, found)
    if as_frozen:
        _check_frozen(line, family, {found.definition.name: found for found in served.values()})


def _check_scalars(line: SessionLine, found: Found) -> None:
    """Raises `PlacedError` if a kernel could not be told the interval."""
    counts = [t.name for t in found.definition.inputs if t.is_scalar and t.dtype in INTEGERS and not t.optional]
    for _, _, why in found.definition.broken(dict.fromkeys(counts, line.interval)):
        raise PlacedError("/interval", f"{found.definition.name}: {why}")


def _check_frozen(line: SessionLine, family: Family, served: dict[str, Found]) -> None:
    """Raises `PlacedError` if the steps are others than those that were frozen, or the budget does not follow from the
    errors of the emulators."""
    again = f"freeze it again: gdnspec workloads freeze --sessions --workloads FILE --workload {line.name}"
    if line.steps_sha256 not in (None, line.steps_hash):
        message = "the steps changed after the session was frozen, so its budget is that of other steps"
        raise PlacedError("/steps", message, again)
    if line.budget is None and line.emulators is None:
        return
    for name in ("budget", "emulators", "sha256", "steps_sha256"):
        if getattr(line, name) is None:
            given = "emulators" if name == "budget" else "budget"
            raise PlacedError(f"/{given}", f"a session with `{given}` needs `{name}` as well", again)
    assert line.budget is not None
    assert line.emulators is not None
    lists = family.about.emulators
    if line.emulators.names not in lists:
        message = f"{FAMILY_FILE} has no list of emulators {line.emulators.names!r}"
        raise PlacedError("/emulators/names", message, nearest(line.emulators.names, lists))
    count = len(lists[line.emulators.names])
    for name in sorted({*line.budget, *line.emulators.errors}):
        if name not in served:
            raise PlacedError(f"/budget/{name}", f"{name!r} serves no step of this session", nearest(name, served))
        judged = {tensor.name: tensor for tensor in served[name].definition.judged}
        budget, errors = line.budget.get(name, {}), line.emulators.errors.get(name, {})
        for tensor in sorted({*budget, *errors}):
            at = json_pointer(name, tensor)
            if tensor not in judged:
                raise PlacedError(f"/budget{at}", f"{tensor!r} is not an output of {name}", nearest(tensor, judged))
            figures = errors.get(tensor, {})
            if any(len(figures.get(metric, ())) != count for metric in METRICS):
                raise PlacedError(f"/emulators/errors{at}", f"each metric needs {count} errors, one of each emulator")
            wanted = freeze(judged[tensor], figures)
            if budget.get(tensor) != wanted:
                said = ", ".join(f"{metric} {limit:g}" for metric, limit in wanted.items())
                message = f"the budget does not follow from its emulators, which give {said}"
                raise PlacedError(f"/budget{at}", message, again)
