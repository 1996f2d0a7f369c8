"""Turns JSON text into models. Every failure is a `Problem` with its file and place."""

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gdnspec.model.base import Model, explaining
from gdnspec.model.errors import PlacedError, Problem, SpecError, json_pointer
from gdnspec.model.wording import SHOULD, likely, meant, of_json, worded

M = TypeVar("M", bound=Model)
B = TypeVar("B", bound=BaseModel)

MAX_FILE_BYTES = Model.most_bytes
INFINITE = frozenset({float("inf"), float("-inf")})
MAX_DEPTH_MESSAGE = "nested too deeply"
OVER_LINES = "each line must hold one whole JSON object; here one goes over several lines"
MOST_PROBLEMS = 100  # per document: one with more is another kind of file


def read_text(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """The text of a file of at most `most` bytes. Raises `SpecError` if it cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SpecError([Problem(path, "is a folder" if path.is_dir() else "is not a regular file")])
        if status.st_size > most:
            raise SpecError([Problem(path, larger_than(most))])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError([Problem(path, "no such file")]) from None
    except UnicodeDecodeError as error:
        why = f"not UTF-8 text but binary data: {error.reason} at byte {error.start}"
        raise SpecError([Problem(path, why)]) from None
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None


def larger_than(most: int) -> str:
    """The message for a file that is too large."""
    return f"larger than {most >> 20} MiB" if most >= 1 << 20 else f"larger than {most >> 10} KiB"


def is_file(path: Path) -> bool:
    """Whether the file exists; False for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"key {name!r} occurs twice in one object")
        result[name] = value
    return result


def _no_constants(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in INFINITE:
        raise ValueError(f"{text} is too large for a number")
    return value


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Parses strict JSON: NaN, infinity and duplicate keys are errors. Raises `SpecError`."""
    at = f"line {line}" if line else ""
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants, parse_float=_finite)
    except json.JSONDecodeError as error:
        place = f"line {line or error.lineno}, column {error.colno}"
        raise SpecError([Problem(path, of_json(error.msg), place)]) from None
    except RecursionError:
        raise SpecError([Problem(path, MAX_DEPTH_MESSAGE, at)]) from None
    except ValueError as error:
        raise SpecError([Problem(path, str(error), at)]) from None


def _pointer(loc: tuple[int | str, ...], data: Any, missing: bool) -> str:
    """A JSON pointer into the file: pydantic's location without its parts for unions and keys."""
    parts: list[int | str] = []
    for i, part in enumerate(loc):
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, dict) and part in data):
            data = data[part]
        elif not (missing and i == len(loc) - 1):
            continue  # the tag of a union, or "[key]"
        parts.append(part)
    return json_pointer(*parts)


def _problem(path: Path, line: int | None, error: Any, data: Any) -> Problem:
    pointer = _pointer(error["loc"], data, missing=error["type"] == "missing")
    message, hint = error["msg"], ""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, PlacedError):
        pointer, message, hint = pointer + cause.pointer, cause.message, cause.hint
    elif error["type"] == "missing":
        message = f"missing key {error['loc'][-1]!r}"
    elif error["type"] == "json_invalid":
        # Python's parser accepted the text. Pydantic's has a lower limit of depth, and refuses lone surrogates.
        deep = "recursion" in message
        message = MAX_DEPTH_MESSAGE if deep else f"not JSON: {message.removeprefix('Invalid JSON: ')}"
    elif error["type"] == "union_tag_not_found":
        message = f"missing key {error['ctx']['discriminator']}"
    elif error["type"] == "union_tag_invalid":
        found, key = error["ctx"], error["ctx"]["discriminator"].strip("'")
        pointer += json_pointer(key)
        message = f"{SHOULD}{found['expected_tags']}, not {shortened(found['tag'])}"
        hint = likely(found["tag"], found["expected_tags"])
    elif error["type"] == "value_error":
        message = message.removeprefix("Value error, ")
    else:
        message, hint = f"{worded(error)}, not {shortened(error.get('input'))}", meant(error)
    place = f"line {line}" if line else ""
    place += (": " if line and pointer else "") + pointer
    return Problem(path, message, place, hint)


def shortened(value: Any) -> str:
    """A JSON value as messages quote it."""
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = str(type(value).__name__)
    return text if len(text) < 60 else text[:57] + "..."


def _problems(path: Path, line: int | None, error: ValidationError, data: Any) -> list[Problem]:
    """One problem per place: pydantic reports a union once for each type that does not fit."""
    found: dict[str, Problem] = {}
    for entry in error.errors():
        if len(found) > MOST_PROBLEMS:
            message = f"{error.error_count()} problems; only the first are shown"
            return [*found.values(), Problem(path, message, f"line {line}" if line else "")]
        problem = _problem(path, line, entry, data)
        known = found.get(problem.place)
        if known is not None and known.message.startswith(SHOULD) and problem.message not in known.message:
            either = known.message.split(", not ")[0] + " or " + problem.message.removeprefix(SHOULD)
            problem = Problem(path, either, problem.place, problem.hint)
        found[problem.place] = problem
    return list(found.values())


def from_text(model: type[M], text: str, path: Path, line: int | None = None) -> M:
    """`model` from JSON text. Raises `SpecError`."""
    try:
        if _is_strict(text):
            return model.model_validate_json(text)
    except ValidationError:
        pass
    return _validated(model, text, parse_json(text, path, line), path, line)  # slower: says what is wrong, and where


def _is_strict(text: str) -> bool:
    """Whether `parse_json` accepts the text. It takes half the time, as it builds nothing. Pydantic's own parser
    accepts infinities and duplicate keys."""
    objects: list[list[tuple[str, Any]]] = []
    floats: list[str] = []
    decoder = json.JSONDecoder(
        object_pairs_hook=objects.append, parse_float=floats.append, parse_constant=_no_constants
    )
    try:
        decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    distinct = list(map(len, map(dict, objects))) == list(map(len, objects))
    return distinct and INFINITE.isdisjoint(map(float, floats))


def build(model: type[B], data: Any, path: Path, line: int | None = None) -> B:
    """`model` from parsed JSON. Raises `SpecError`."""
    return _validated(model, json.dumps(data), data, path, line)


def _validated(model: type[B], text: str, data: Any, path: Path, line: int | None) -> B:
    """`text` is the JSON of `data`."""
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise SpecError(_problems(path, line, _explained(model, text, error), data)) from None
    except RecursionError:
        raise SpecError([Problem(path, MAX_DEPTH_MESSAGE, f"line {line}" if line else "")]) from None


def _explained(model: type[BaseModel], text: str, error: ValidationError) -> ValidationError:
    """The same error from the validator that suggests the nearest key."""
    try:
        explaining(model).validate_json(text, strict=True)
    except ValidationError as said:
        return said
    return error


def load(model: type[M], path: Path) -> M:
    """One model from a JSON file. Raises `SpecError`."""
    return from_text(model, read_text(path, model.most_bytes), path)


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line that is not blank."""
    # split("\n") instead of splitlines(): a JSON string may contain U+2028, which does not end a line here.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def jsonl(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line of a JSONL file that is not blank.

    Raises one `SpecError` for JSON that an editor has laid out over several lines. Each of them would be an error.
    """
    text = read_text(path)
    if _is_over_lines(text):
        hint = f"jq -c . {path.name} writes each object on one line"
        raise SpecError([Problem(path, OVER_LINES, "line 1", hint)])
    yield from numbered(text)


def _is_over_lines(text: str) -> bool:
    """Whether the first value of a file is whole, but longer than a line."""
    start = text.lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(start)
    except (ValueError, RecursionError):
        return False
    return "\n" in start[:end]


def starts_with(path: Path, key: str) -> bool:
    """Whether the first line of a JSONL file is an object with this key: results have a status, sessions have steps,
    workloads have axes."""
    with contextlib.suppress(SpecError):
        for number, text in jsonl(path):
            data = parse_json(text, path, number)
            return isinstance(data, dict) and key in data
    return False


def load_lines(model: type[M], path: Path) -> list[tuple[int, M]]:
    """(line number, model) of every line of a JSONL file. Raises one `SpecError` with the problems of all lines."""
    rows: list[tuple[int, M]] = []
    problems: list[Problem] = []
    for number, text in jsonl(path):
        try:
            rows.append((number, from_text(model, text, path, number)))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return rows
