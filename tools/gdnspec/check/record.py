"""Results as JSON lines. Each is written at once, so that an interrupted run can continue where it stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from gdnspec.check.seal import is_sealed, seal
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import from_text, jsonl
from gdnspec.model.result import CheckResult

LASTING = frozenset(
    {"PASSED", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "INCORRECT_NUMERICAL", "NON_FINITE", "MUTATED_INPUT"}
)


def earlier(path: Path, warn: Callable[[str], None]) -> dict[str, CheckResult]:
    """The results in a file, by key. `warn` gets a message for each broken line, which is skipped."""
    if not path.exists():
        return {}
    results, foreign = {}, 0
    for number, text in jsonl(path):
        try:
            result = from_text(CheckResult, text, path, number)
        except SpecError as error:
            warn(f"{error}; the line is skipped")
            continue
        # Other statuses depend on the machine's load or installation, so they are judged again.
        if result.status not in LASTING:
            continue
        if is_sealed(result):
            results[result.key] = result
        else:
            foreign += 1
    if foreign:
        warn(f"{path}: {foreign} results were not recorded by this judge, or were changed since: they are judged again")
    return results


BEGIN = '{"schema_version":'  # the start of every line of results or traces


def _refuse_other_files(path: Path) -> None:
    """Raises `SpecError` unless the file contains results: never append to another file. A line may be cut off."""
    for _, text in jsonl(path):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and "status" in data:
            return
        if data is None and (text.startswith(BEGIN) or BEGIN.startswith(text)):
            continue
        message = "the file contains something other than results"
        raise SpecError([Problem(path, message, hint="--json appends: name another file")])


class Lines:
    """Appends lines of JSON to a file of such lines, and flushes each. If the last line has no line break, it gets one
    first. Use as a context manager. Raises `SpecError` if the file cannot be written or contains something else."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            _refuse_other_files(path)
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
            if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                self._file.write("\n")
        except OSError as error:
            raise SpecError([Problem(path, f"cannot be written: {error.strerror}", hint="--json FILE")]) from None

    def append(self, line: str) -> None:
        self._file.write(line + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class Recorder(Lines):
    """Appends results with their seals."""

    def write(self, result: CheckResult) -> None:
        sealed = result.model_copy(update={"seal": seal(result)})
        self.append(json.dumps(sealed.model_dump(mode="json")))
