"""Writes files of sessions: drawn from a seed, or made from a request log."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gdnspec.catalog.families import Family, families, same_families
from gdnspec.catalog.sessions import check, load_sessions, with_sessions
from gdnspec.catalog.writing import require_file
from gdnspec.cli.console import complain, number_of
from gdnspec.cli.files import whole
from gdnspec.cli.progress import counted
from gdnspec.model.errors import PlacedError, Problem, SpecError, nearest
from gdnspec.model.session_line import SessionLine, States

CHECK, FREEZE = ("check",), ("workloads", "freeze")
SMALLER = "lower its `slots`, take a preset with fewer heads, or freeze it where there is more memory"


def refuse(given: Mapping[str, object]) -> None:
    """Raises `SpecError` for the first option that has no meaning for sessions. `given`: None or empty if absent."""
    for option, value in given.items():
        if value not in (None, [], False):
            raise SpecError(f"{option} has no meaning with --sessions: leave it out")


def family_named(name: str | None) -> Family:
    """The family of that name, or the only one that has sessions. Raises `SpecError`."""
    known = with_sessions()
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name in known:
        return known[name]
    if name in families():
        raise SpecError(f"the family {name!r} has no sessions ({nearest(name, known)})")
    raise SpecError(f"--sessions takes a family instead of a definition, not {name!r} ({nearest(name or '', known)})")


def states_named(name: str) -> States:
    """The type of states that --states names. Raises `SpecError`."""
    if name == "float32":
        return "float32"
    if name == "bfloat16":
        return "bfloat16"
    raise SpecError(f"no states {name!r}: --states takes float32 or bfloat16")


def fitting(family: Family, line: SessionLine) -> SessionLine:
    """The line, if it fits its family. Raises `SpecError`."""
    try:
        check(line, family)
    except PlacedError as error:
        raise SpecError(
            f"session {line.name!r}: {error.message}" + (f" ({error.hint})" if error.hint else "")
        ) from None
    return line


def one_of(file: Path, name: str) -> tuple[Family, SessionLine]:
    """The session of that name in a file. Raises `SpecError`."""
    family = family_named(None)
    lines = {line.name: line for line in load_sessions(file, family, as_frozen=False)}
    if name not in lines:
        raise SpecError([Problem(file, f"no session {name!r}", hint=nearest(name, lines))])
    return family, lines[name]


def write(family: Family, lines: Iterable[SessionLine], count: int, output: Path, force: bool, freeze: bool) -> None:
    """Writes the sessions, each with the budget that honest emulators give if `freeze`. Raises `SpecError`; the file
    then stays as it was."""
    to_stdout = str(output) == "-"
    if not to_stdout:
        require_file(output, "-o FILE")
        if output.is_file() and not force:
            raise SpecError([Problem(output, "exists already", hint="--force overwrites it")])
    made: Callable[[SessionLine], SessionLine] = (
        (lambda line: _frozen(family, line, output)) if freeze else (lambda line: line)
    )
    rows = []
    with counted("sessions", count) as tick:
        for i, line in enumerate(lines):
            rows.append(_row(made(fitting(family, line))))
            tick(i + 1)
    if to_stdout:
        print("".join(rows), end="")
        return
    with whole(output) as file:
        file.write("".join(rows))
    next_is = CHECK if freeze else FREEZE
    complain(f"{number_of(len(rows), 'session')} in {output}; next: {command(next_is, output)}")


def freeze(family: Family, file: Path, names: list[str] | None, missing: bool) -> None:
    """Gives sessions of a file the budgets that honest emulators give: all of them, these, or those without one. Raises
    `SpecError`; the file then stays as it was."""
    lines = load_sessions(file, family, as_frozen=False)
    known = [line.name for line in lines]
    for name in names or ():
        if name not in known:
            raise SpecError([Problem(file, f"no session {name!r}", hint=nearest(name, known))])
    chosen = {
        line.name for line in lines if (not names or line.name in names) and not (missing and line.budget is not None)
    }

    rows = []
    with counted("sessions", len(chosen)) as tick:
        done = 0
        for line in lines:
            wanted = line.name in chosen
            rows.append(_row(_frozen(family, line, file) if wanted else line))
            done += wanted
            tick(done)
    with whole(file) as target:
        target.write("".join(rows))
    complain(f"{number_of(len(chosen), 'session')} frozen in {file}; next: {command(CHECK, file)}")


def _frozen(family: Family, line: SessionLine, file: Path) -> SessionLine:
    """The line of this file with its budget. Raises `SpecError`, also if the machine has not enough memory for it."""
    from gdnspec.build.full_memory import full, out_of_memory
    from gdnspec.sessions.session_budget import frozen

    try:
        return frozen(family, line)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message = f"session {line.name!r}: {full('judge', error)}"
        raise SpecError([Problem(file, message, hint=SMALLER)]) from None


def command(words: tuple[str, ...], file: Path) -> str:
    """A command on a file of sessions, to copy."""
    return shlex.join(["gdnspec", *words, "--sessions", "--workloads", str(file), *same_families()])


def _row(line: SessionLine) -> str:
    return json.dumps(line.model_dump(mode="json", exclude_defaults=True)) + "\n"
