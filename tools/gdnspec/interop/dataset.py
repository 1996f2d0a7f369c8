"""Read a dataset of FlashInfer-Bench from disk. Each file is read separately, so that a broken one hides no other."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gdnspec.interop.foreign import Definition, Foreign, Solution, Trace
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import jsonl, parse_json, read_text

M = TypeVar("M", bound=Foreign)


@dataclass
class Dataset:
    """What was found below `root`. `problems`: files and lines that do not follow the format."""

    root: Path
    definitions: dict[str, Definition] = field(default_factory=dict)
    solutions: list[Solution] = field(default_factory=list)
    workloads: list[Trace] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read(path: Path) -> Dataset:
    """Reads a dataset's root, or one JSON file of a definition or a solution. Raises `SpecError` if it is neither."""
    if not path.exists():
        raise SpecError([Problem(path, "no such file or folder")])
    data = Dataset(path if path.is_dir() else path.parent)
    if path.is_file():
        _single(path, data)
    else:
        for file in sorted((path / "definitions").rglob("*.json")):
            for definition in _whole(Definition, file, data):
                if definition.name in data.definitions:
                    data.problems.append(Problem(file, f"a second definition has the name {definition.name!r}"))
                data.definitions.setdefault(definition.name, definition)
        for file in sorted((path / "solutions").rglob("*.json")):
            data.solutions += _whole(Solution, file, data)
        for folder, into in (("workloads", data.workloads), ("traces", data.traces)):
            for file in sorted((path / folder).rglob("*.jsonl")):
                into += _lines(file, data)
    if not (data.definitions or data.solutions or data.workloads or data.traces or data.problems):
        hint = "a dataset has definitions/, solutions/, workloads/ or traces/"
        raise SpecError([Problem(path, "is not a dataset of FlashInfer-Bench", hint=hint)])
    return data


def _single(path: Path, data: Dataset) -> None:
    content = parse_json(read_text(path), path)
    if isinstance(content, dict) and "sources" in content:
        data.solutions += _whole(Solution, path, data)
    else:
        data.definitions |= {item.name: item for item in _whole(Definition, path, data)}


def _whole(kind: type[M], file: Path, data: Dataset) -> Iterator[M]:
    try:
        yield kind.model_validate_json(json.dumps(parse_json(read_text(file), file)))
    except ValidationError as error:
        data.problems += _problems(error, file, "")
    except SpecError as error:
        data.problems += error.problems


def _lines(file: Path, data: Dataset) -> Iterator[Trace]:
    for number, text in jsonl(file):
        try:
            yield Trace.model_validate_json(text)
        except ValidationError as error:
            data.problems += _problems(error, file, f"line {number}: ")


def _problems(error: ValidationError, file: Path, place: str) -> list[Problem]:
    return [
        Problem(file, item["msg"], f"{place}/{'/'.join(map(str, item['loc']))}")
        for item in error.errors(include_url=False, include_input=False)[:5]
    ]
