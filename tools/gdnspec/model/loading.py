"""JSON text to models, every failure as a `Problem` with its file and place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import RootModel, ValidationError

from gdnspec.model.base import Model
from gdnspec.model.errors import PlacedError, Problem, SpecError

M = TypeVar("M", bound=Model)
R = TypeVar("R", bound=RootModel[Any])

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_DEPTH_MESSAGE = "nested too deeply"


def read_text(path: Path) -> str:
    """The file's text, or a `SpecError` that says why it cannot be had."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError([Problem(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError([Problem(path, "no such file")]) from None
    except UnicodeDecodeError as error:
        raise SpecError([Problem(path, f"not UTF-8 text: {error.reason} at byte {error.start}")]) from None
    except OSError as error:
        raise SpecError([Problem(path, error.strerror or str(error))]) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {double!r} stands twice in one object")
    return result


def _no_constants(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Strict JSON: no NaN, no duplicate keys."""
    at = f"line {line}" if line else ""
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except json.JSONDecodeError as error:
        place = f"line {line or error.lineno}, column {error.colno}"
        raise SpecError([Problem(path, f"not JSON: {error.msg}", place)]) from None
    except RecursionError:
        raise SpecError([Problem(path, MAX_DEPTH_MESSAGE, at)]) from None
    except ValueError as error:
        raise SpecError([Problem(path, str(error), at)]) from None


def _problem(path: Path, line: int | None, error: Any) -> Problem:
    # pydantic adds a union's tag to the location ("axes", 0, "var", "minimum"): it is no key of the file, but as
    # tags are told apart only by the union's own error, they are kept and read well enough.
    pointer = "".join(f"/{part}" for part in error["loc"])
    message, hint = error["msg"], ""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, PlacedError):
        pointer, message, hint = pointer + cause.pointer, cause.message, cause.hint
    elif error["type"] == "missing":
        message = f"missing key {error['loc'][-1]!r}"
    elif error["type"] not in ("value_error",):
        shown = json.dumps(error.get("input"), default=str)
        message += f", not {shown if len(shown) < 60 else shown[:57] + '...'}"
    else:
        message = message.removeprefix("Value error, ")
    place = " ".join(part for part in (f"line {line}:" if line else "", pointer) if part)
    return Problem(path, message, place.rstrip(":") if not pointer else place, hint)


def build(model: type[M], data: Any, path: Path, line: int | None = None) -> M:
    """`model` from parsed JSON."""
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise SpecError([_problem(path, line, entry) for entry in error.errors()]) from None
    except RecursionError:
        raise SpecError([Problem(path, MAX_DEPTH_MESSAGE, f"line {line}" if line else "")]) from None


def validate_root(model: type[R], data: Any, path: Path) -> R:
    """As `build`, for a model that is a mapping at its root."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise SpecError([_problem(path, None, entry) for entry in error.errors()]) from None


def load(model: type[M], path: Path) -> M:
    """One model from a JSON file."""
    return build(model, parse_json(read_text(path), path), path)


def jsonl(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of every line of a JSONL file that is not blank."""
    # split("\n") and not splitlines(): a JSON string may hold U+2028, which is no end of line here.
    for number, text in enumerate(read_text(path).split("\n"), start=1):
        if text.strip():
            yield number, text


def load_lines(model: type[M], path: Path) -> list[tuple[int, M]]:
    """Every line of a JSONL file, with its number; all problems are raised together."""
    rows: list[tuple[int, M]] = []
    problems: list[Problem] = []
    for number, text in jsonl(path):
        try:
            rows.append((number, build(model, parse_json(text, path, number), path, number)))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return rows
