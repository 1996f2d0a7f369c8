"""Results as JSON lines: written as they come, so that an interrupted run goes on where it stopped."""

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
    """The results a file holds already, by key; a line that is cut off is reported and passed over."""
    if not path.exists():
        return {}
    results, foreign = {}, 0
    for number, text in jsonl(path):
        try:
            result = from_text(CheckResult, text, path, number)
        except SpecError as error:
            warn(f"{error}; the line is passed over")
            continue
        # What depends on the machine's mood or on what is installed is asked again.
        if result.status not in LASTING:
            continue
        if is_sealed(result):
            results[result.key] = result
        else:
            foreign += 1
    if foreign:
        warn(f"{path}: {foreign} results were not recorded by this judge as they stand: judged again")
    return results


BEGIN = '{"schema_version":'  # of each line that is written, a result's or a trace's


def _refuse_other_files(path: Path) -> None:
    """Results are appended to results, never to somebody's source. A line that was cut off is one of theirs."""
    for _, text in jsonl(path):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict) and "status" in data:
            return
        if data is None and (text.startswith(BEGIN) or BEGIN.startswith(text)):
            continue
        raise SpecError([Problem(path, "holds something other than results", hint="--json appends; name another file")])


class Lines:
    """Appends lines of JSON to a file of such lines, each flushed; a last line without an end gets one first. Use as a
    context manager; raises `SpecError` where the file cannot be written or holds something else."""

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
    """Of results, sealed."""

    def write(self, result: CheckResult) -> None:
        sealed = result.model_copy(update={"seal": seal(result)})
        self.append(json.dumps(sealed.model_dump(mode="json")))
