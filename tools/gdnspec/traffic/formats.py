"""The public formats of request logs: their columns, and how to read a row."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gdnspec.model.errors import nearest
from gdnspec.traffic.request import Request

LONGEST = 1 << 24  # tokens of a prompt or an output; no real request comes near it
LATEST = 1 << 62  # ns, 146 years
NS = {"s": 10**9, "ms": 10**6}


class BadRow(ValueError):
    """An invalid row. `column`: the invalid column, or empty for the whole row."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


class FailedRequest(Exception):
    """A row of a request that the log marks as failed."""


Parse = Callable[[Sequence[str]], Request]


@dataclass(frozen=True)
class Format:
    """A format. `columns`: their names in the header, empty for JSONL. `parse`: reads their values, in this order."""

    name: str
    title: str
    columns: tuple[str, ...]
    parse: Parse


def _number(column: str, text: str) -> float:
    try:
        if "_" in text:
            raise ValueError
        value = float(text)
    except ValueError:
        raise BadRow(column, f"{text[:40]!r} is not a number" if text else "is empty") from None
    if not math.isfinite(value):
        raise BadRow(column, f"{text[:40]!r} is not a finite number")
    return value


def _tokens(column: str, text: str, least: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else _number(column, text)
    if value != int(value):
        raise BadRow(column, f"{text[:40]} is not a whole number of tokens")
    if value < least:
        raise BadRow(column, f"{text[:40]} is " + ("negative" if value < 0 else f"below {least}"))
    if value > LONGEST:
        raise BadRow(column, f"{text[:40]} tokens are more than {LONGEST}, which is implausible")
    return int(value)


def _moment(column: str, text: str) -> int:
    """The nanoseconds since 1970 of a date and time, in UTC if it has no time zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadRow(column, f"{text[:40]!r} is not a date and time such as 2023-11-16 18:17:03.9799600") from None
    since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000


def _elapsed(column: str, text: str, unit: str) -> int:
    """Seconds or milliseconds in nanoseconds. Whole numbers stay exact."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        value = int(text) * NS[unit]
    else:
        seconds = _number(column, text)
        value = round(seconds * NS[unit]) if abs(seconds) < 1e12 else LATEST + 1
    if abs(value) > LATEST:
        raise BadRow(column, f"{text[:40]} {unit} is more than a century")
    return value


# --- CSV --------------------------------------------------------------------------------------------------------


def _azure(row: Sequence[str]) -> Request:
    moment, prompt, output = row
    return Request(
        _moment("TIMESTAMP", moment), _tokens("ContextTokens", prompt, 1), _tokens("GeneratedTokens", output, 0)
    )


def _burstgpt(row: Sequence[str]) -> Request:
    seconds, prompt, output = row
    arrival = _elapsed("Timestamp", seconds, "s")
    request = Request(arrival, _tokens("Request tokens", prompt, 0), _tokens("Response tokens", output, 0))
    if request.output == 0:  # the authors of the log mark failed requests so
        raise FailedRequest
    if request.prompt == 0:
        raise BadRow("Request tokens", "0 is below 1")
    return request


def _plain(columns: tuple[str, str, str], row: Sequence[str]) -> Request:
    arrival, prompt, output = row
    dated = "-" in arrival[1:] and ":" in arrival
    when = _moment(columns[0], arrival) if dated else _elapsed(columns[0], arrival, "s")
    return Request(when, _tokens(columns[1], prompt, 1), _tokens(columns[2], output, 0))


# --- JSONL ------------------------------------------------------------------------------------------------------

MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")


def _mooncake(block: int, row: Sequence[str]) -> Request:
    """Reads a line of JSON. `hash_ids` has one number per block of `block` tokens; the last block may be partial."""
    (line,) = row
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow("", f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadRow("", "not a JSON object")
    for name in MOONCAKE[:3]:
        if name not in data:
            raise BadRow(name, f"is missing ({nearest(name, data)})" if data else "is missing")
        if isinstance(data[name], bool) or not isinstance(data[name], int | float):
            raise BadRow(name, f"{str(data[name])[:40]!r} is not a number")
    blocks = data.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(type(x) is int for x in blocks):
        raise BadRow("hash_ids", "is not a list of whole numbers")
    request = Request(
        _elapsed("timestamp", str(data["timestamp"]), "ms"),
        _tokens("input_length", str(data["input_length"]), 1),
        _tokens("output_length", str(data["output_length"]), 0),
        tuple(blocks),
    )
    least, most = request.prompt // block, -(-request.prompt // block)
    if blocks and not least <= len(blocks) <= most:
        message = (
            f"{len(blocks)} blocks, but {request.prompt} tokens have {least} or {most} of {block} tokens: set "
            "--block-tokens"
        )
        raise BadRow("hash_ids", message)
    return request


# --- choice -----------------------------------------------------------------------------------------------------

NAMES = ("azure", "mooncake", "burstgpt", "csv")
PLAIN = ("arrival", "prompt_tokens", "output_tokens")


def known(columns: tuple[str, str, str] = PLAIN, block: int = 512) -> dict[str, Format]:
    """Every format by name. `columns`: those of a plain CSV. `block`: tokens per block that Mooncake hashes."""
    azure = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    burstgpt = ("Timestamp", "Request tokens", "Response tokens")
    return {
        "azure": Format("azure", "Azure LLM inference", azure, _azure),
        "mooncake": Format("mooncake", "Mooncake", (), partial(_mooncake, block)),
        "burstgpt": Format("burstgpt", "BurstGPT", burstgpt, _burstgpt),
        "csv": Format("csv", "CSV", columns, partial(_plain, columns)),
    }
