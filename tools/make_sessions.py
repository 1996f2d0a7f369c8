"""Writes the session file of a family: the sessions that it ships, with hashes, budgets and the errors of emulators.

    python tools/make_sessions.py            writes all; a frozen line stays while its steps and its tokens do
    python tools/make_sessions.py NAME ..    freezes these sessions again

A family lists its sessions in reference/<family>/suites/sessions.py: `lines()` yields each as JSON.
"""

import argparse
import json
import sys
from typing import Any

from gdnspec.build.reference import module
from gdnspec.catalog.families import Family
from gdnspec.catalog.sessions import check, sessions_file, with_sessions
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model.errors import PlacedError, SpecError
from gdnspec.model.loading import build, load_lines
from gdnspec.model.session_line import SessionLine
from gdnspec.sessions.session_budget import bare, frozen
from gdnspec.sessions.token_streams import draw


def held(family: Family) -> dict[str, SessionLine]:
    """The lines of the file as they stand, by name, whether or not they still fit."""
    file = sessions_file(family)
    try:
        return {line.name: line for _, line in load_lines(SessionLine, file)} if file.is_file() else {}
    except SpecError:
        return {}


def holds(family: Family, line: SessionLine, before: SessionLine | None) -> bool:
    """Whether a frozen line is of these steps and tokens."""
    if before is None or bare(before).model_copy(update={"covers": line.covers}) != line or before.budget is None:
        return False
    try:
        draw(family, before)
        check(before, family)
    except (InvalidWorkload, PlacedError):
        return False
    return True


def write(family: Family, again: list[str]) -> None:
    """The file of a family."""
    before, rows = held(family), []
    listed: list[dict[str, Any]] = list(module(family, "suites.sessions").lines())
    for i, data in enumerate(listed):
        line = build(SessionLine, data, sessions_file(family), i + 1)
        check(line, family)
        known = before.get(line.name)
        if known is not None and line.name not in again and holds(family, line, known):
            made = known.model_copy(update={"covers": line.covers})
        else:
            made = frozen(family, line)
            print(f"{line.name} frozen", flush=True)
        rows.append(json.dumps(made.model_dump(mode="json", exclude_defaults=True)) + "\n")
    sessions_file(family).write_text("".join(rows), encoding="utf-8")
    print(f"{len(rows)} sessions in {sessions_file(family)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="sessions to freeze again")
    options = parser.parse_args()
    try:
        for family in with_sessions().values():
            write(family, options.names)
    except SpecError as error:
        sys.exit(str(error))
    except PlacedError as error:
        sys.exit(f"{error.pointer}: {error.message}")


if __name__ == "__main__":
    main()
