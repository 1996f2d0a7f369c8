"""Read a request log row by row, so that a log of gigabytes needs little memory."""

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.traffic.formats import NAMES, BadRow, FailedRequest, Format, known
from gdnspec.traffic.request import Request

LONGEST_LINE = 1 << 20  # characters; a prompt of a million tokens has 2,000 blocks, which fit


class Log:
    """Iterates over requests in order of arrival. For an invalid row it raises `SpecError` with line and column; with
    `skip_invalid` it counts the row in `skipped`. `failed` counts requests that the log marks as failed."""

    def __init__(
        self, path: Path, formats: dict[str, Format] | None = None, kind: str | None = None,
        skip_invalid: bool = False, longest: int = 1 << 18,
    ) -> None:  # fmt: skip
        self.path, self.formats, self.kind = path, formats or known(), kind
        self.skip_invalid, self.longest = skip_invalid, longest
        self.requests = self.failed = 0
        self.skipped: dict[str, int] = {}  # rows by column
        if kind is not None and kind not in self.formats:
            raise SpecError(f"no format {kind!r} ({nearest(kind, NAMES)})")

    def __iter__(self) -> Iterator[Request]:
        first: int | None = None
        latest = 0
        try:
            with _opened(self.path) as file:
                lines = _lines(file, self.path)
                chosen, rows = self._rows(lines)
                for number, row in rows:
                    try:
                        if isinstance(row, BadRow):
                            raise row
                        request = chosen.parse(row)
                        self._hold(request, first, latest, chosen)
                    except FailedRequest:
                        self.failed += 1
                        continue
                    except BadRow as error:
                        self._skip(number, error)
                        continue
                    first = request.arrival if first is None else first
                    latest = request.arrival
                    self.requests += 1
                    yield request._replace(arrival=request.arrival - first)
        except UnicodeDecodeError as error:
            raise SpecError([Problem(self.path, f"not UTF-8 text: {error.reason}")]) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SpecError([Problem(self.path, f"not a whole gzip file: {error}")]) from None
        if not self.requests:
            skipped = sum(self.skipped.values()) + self.failed
            why = f": all {skipped} rows were skipped" if skipped else ""
            raise SpecError([Problem(self.path, f"holds no request{why}")])

    def _hold(self, request: Request, first: int | None, latest: int, chosen: Format) -> None:
        arrival, prompt = (*chosen.columns, "timestamp", "input_length")[:2]
        if first is not None and request.arrival < latest:
            raise BadRow(arrival, f"{(latest - request.arrival) / 1e9:g} s before the row above: sort the log")
        if request.prompt > self.longest:
            raise BadRow(prompt, f"a prompt of {request.prompt} tokens is over the limit of {self.longest}")

    def _skip(self, number: int, error: BadRow) -> None:
        place = f"line {number}" + (f": {error.column}" if error.column else "")
        if not self.skip_invalid:
            hint = "--skip-invalid skips such rows, and counts them"
            raise SpecError([Problem(self.path, str(error), place, hint)])
        column = error.column or "line"
        self.skipped[column] = self.skipped.get(column, 0) + 1

    # --- rows ---------------------------------------------------------------------------------------------------

    def _rows(self, lines: Iterator[str]) -> tuple[Format, Iterable[tuple[int, list[str] | BadRow]]]:
        """The format, and its rows as (line number, values of the columns)."""
        start = next(lines, "")
        if self.kind == "mooncake" or (self.kind is None and start.lstrip().startswith("{")):
            numbered = enumerate(_chain(start, lines), start=1)
            return self.formats["mooncake"], ((n, [line]) for n, line in numbered if line.strip())
        if not start.strip():
            raise SpecError([Problem(self.path, "holds no request")])
        try:
            header = [name.strip() for name in _cells(start)]
        except csv.Error as error:
            raise SpecError([Problem(self.path, f"not CSV: {error}", "line 1")]) from None
        chosen = self._format(header)
        indices = [header.index(name) for name in chosen.columns]
        return chosen, self._values(lines, indices, len(header), chosen)

    def _format(self, header: list[str]) -> Format:
        candidates = [self.formats[self.kind]] if self.kind else [f for f in self.formats.values() if f.columns]
        for candidate in candidates:
            if all(name in header for name in candidate.columns):
                for name in candidate.columns:
                    if header.count(name) > 1:
                        raise SpecError([Problem(self.path, f"two columns {name!r}", "line 1")])
                return candidate
        if self.kind:
            missing = [name for name in candidates[0].columns if name not in header]
            hint = nearest(missing[0], header)
            raise SpecError([Problem(self.path, f"no column {missing[0]!r}", "line 1", hint)])
        wanted = "; ".join(f"{f.name}: {', '.join(f.columns)}" for f in candidates)
        message = f"the columns {', '.join(header)[:200]} belong to no known format"
        raise SpecError([Problem(self.path, message, "line 1", f"{wanted}; mooncake: JSONL")])

    def _values(
        self, lines: Iterator[str], indices: list[int], width: int, chosen: Format
    ) -> Iterator[tuple[int, list[str] | BadRow]]:
        """Parses each line separately. No format has cells over several lines, and so a stray quote spoils one line."""
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            try:
                row = _cells(line)
            except csv.Error as error:
                yield number, BadRow("", f"not CSV: {error}")
                continue
            if len(row) != width:
                column = next((name for name, i in zip(chosen.columns, indices, strict=True) if i >= len(row)), "")
                yield number, BadRow(column, f"{len(row)} cells, the header has {width}")
            else:
                yield number, [row[i].strip() for i in indices]


def _cells(line: str) -> list[str]:
    """The cells of a line. Raises `csv.Error`."""
    return next(csv.reader([line], strict=True))


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if path.exists() and not path.is_file() and not path.is_fifo():
        raise SpecError([Problem(path, "is not a file")])
    return path.open(encoding="utf-8-sig", newline="")


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise SpecError([Problem(path, f"longer than {LONGEST_LINE} characters", f"line {number}")])
        yield line


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
