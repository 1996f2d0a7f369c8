"""Definitions that extend another one: the file holds only what differs, and readers get the whole definition.

The rules are those of JSON Merge Patch (RFC 7396): an object changes the keys that it gives, null removes a key, and
any other value replaces the old one. In addition, an object can change a list of named things: its keys are their
names.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gdnspec import paths
from gdnspec.catalog.families import families, family_of
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError, json_pointer, nearest
from gdnspec.model.loading import parse_json, read_text, shortened

DEFINITION_FILE = "definition.json"
KEY = "extends"
ALWAYS_GIVEN = ("name", "version", "description")


@dataclass(frozen=True)
class Source:
    """The text of a definition.json, and the definition that it extends."""

    file: Path
    text: str
    parent: "Source | None" = None

    @cached_property
    def given(self) -> Any:
        return parse_json(self.text, self.file)

    @cached_property
    def whole(self) -> Any:
        """The content of the file merged with the files that it extends, as parsed JSON."""
        return self.given if self.parent is None else merged(self.parent.whole, self.given)

    def chain(self) -> Iterator["Source"]:
        """This source, then the one that it extends, and so on."""
        yield self
        if self.parent is not None:
            yield from self.parent.chain()

    def placed(self, problem: Problem) -> Problem:
        """A problem of the whole definition, moved to the file and place that hold the value."""
        if self.parent is None or problem.file != self.file or not problem.place.startswith("/"):
            return problem
        parts = [part.replace("~1", "/").replace("~0", "~") for part in problem.place.split("/")[1:]]
        for source in self.chain():
            here, parts = (True, parts) if source.parent is None else _place(source.parent.whole, source.given, parts)
            if here:
                break
        if source is self:
            return replace(problem, place=json_pointer(*parts))
        origin = f"{paths.shown(source.file)}: {json_pointer(*parts)}"
        return replace(problem, place=f"/{KEY}", message=f"inherited from {origin}: {problem.message}")


def read(file: Path) -> Source:
    """The file of a definition and all files that it extends. Raises `SpecError`."""
    found: list[tuple[Path, str]] = []
    problems: list[Problem] = []
    at: Path | None = file
    while at is not None:
        try:
            text = read_text(at, Definition.most_bytes)
            found.append((at, text))
            at = _extended(at, text)
        except SpecError as error:
            problems = error.problems
            break
        if at in [known for known, _ in found]:
            names = [known.parent.name for known in (*(known for known, _ in found), at)]
            message = f"it extends itself: {' extends '.join(names)}"
            problems = [Problem(file, message, f"/{KEY}", "give the whole definition in one of these files")]
            break
    if problems and all(problem.file != file for problem in problems):
        problems.append(because_of(file, problems[0].file))
    if problems:
        raise SpecError(problems)
    source: Source | None = None
    for path, text in reversed(found):
        source = Source(path, text, source)
    assert source is not None
    return source


def because_of(file: Path, parent: Path) -> Problem:
    """The problem of a file whose parent has problems."""
    return Problem(file, f"the definition that it extends has problems: {paths.shown(parent)}", f"/{KEY}")


def _extended(file: Path, text: str) -> Path | None:
    """The file that this one extends. Raises `SpecError`."""
    if f'"{KEY}"' not in text:  # most definitions do not extend another: skip parsing
        return None
    data = parse_json(text, file)
    if not isinstance(data, dict) or KEY not in data:
        return None
    name, pointer = data[KEY], f"/{KEY}"
    if not isinstance(name, str):
        message = f"it must be the name of a definition of this family, not {shortened(name)}"
        raise SpecError([Problem(file, message, pointer)])
    if missing := [key for key in ALWAYS_GIVEN if key not in data]:
        message = "missing key {!r}: it is not inherited"
        raise SpecError([Problem(file, message.format(key), json_pointer(key)) for key in missing])
    own = str(data["name"])
    if name == own:
        return file
    family = family_of(file, str(data.get("family", "")))
    siblings = {known.parent.name: known for known in family.folder.glob(f"*/{DEFINITION_FILE}")}
    if name in siblings:
        return siblings[name]
    message = f"no definition {name!r} in the family {family.name!r}"
    for other in families().values():
        if name in (known.parent.name for known in other.folder.glob(f"*/{DEFINITION_FILE}")):
            message = f"{name!r} belongs to the family {other.name!r}, not to {family.name!r} as this definition"
    raise SpecError([Problem(file, message, pointer, nearest(name, siblings.keys() - {own}))])


def merged(parent: Any, given: Any) -> Any:
    """The parent's value with the changes of `given`."""
    if isinstance(parent, dict) and isinstance(given, dict):
        kept = {key: merged(value, given[key]) if key in given else value for key, value in parent.items()}
        added = {key: value for key, value in given.items() if key not in parent}
        return {key: value for key, value in kept.items() if given.get(key, ...) is not None} | added
    if isinstance(given, dict) and (entries := _by_name(parent)) is not None:
        named = merged(entries, given).items()
        return [{"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in named]
    return given


def _by_name(value: Any) -> dict[str, Any] | None:
    """The entries of a list of named things by name; None for anything else."""
    if not isinstance(value, list) or not all(isinstance(entry, dict) and "name" in entry for entry in value):
        return None
    return {entry["name"]: entry for entry in value}


def _place(parent: Any, given: Any, parts: list[str]) -> tuple[bool, list[str]]:
    """Where the value at `parts` of the whole is: (True, its place in `given`) or (False, its place in the parent)."""
    entries = _by_name(parent)
    if not parts or not isinstance(given, dict) or (entries is None and not isinstance(parent, dict)):
        return True, parts
    known, key, rest = parent, parts[0], parts[1:]
    at = key
    if entries is not None:
        names = list(merged(entries, given))
        if not key.isdecimal() or int(key) >= len(names):
            return True, []
        known, key = entries, names[int(key)]
        at = str(list(entries).index(key)) if key in entries else ""
    if key not in given:
        return key not in known, [at if key in known else key, *rest]
    if key not in known:
        return True, [key, *rest]
    here, rest = _place(known[key], given[key], rest)
    return here, [key if here else at, *rest]
