"""Errors of pydantic and of the JSON parser in plain words, for people who wrote the file and not its model."""

from collections.abc import Callable, Mapping
from typing import Any

from gdnspec.model.errors import NEAR, similar

SHOULD = "should be "  # the start of what a value should be; `or` joins two of them

# Patterns of the models -> what the text should be.
FORMS = {
    r"^[A-Za-z][A-Za-z0-9_]*$": "a name of letters, digits and underscores that starts with a letter",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and underscores that starts with no digit",
    r"^[a-z][a-z0-9_]*$": "a name of small letters, digits and underscores that starts with a letter",
    r"^[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)?$": "a name of small letters, digits and underscores, or NAME:VARIANT",
    r"^[a-z0-9][a-z0-9.\-]*$": "a name of small letters, digits, dots and dashes",
    r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$": "a name of letters, digits, underscores, dots and dashes",
    r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)?$": "the name of an axis or input, or INPUT.PART",
    r"^[a-z0-9_]+\.py::[A-Za-z_][A-Za-z0-9_]*$": "a file and a function, such as file.py::function",
    r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]*\.(py|cu)::[A-Za-z_][A-Za-z0-9_]*$": (
        "a file and a function, such as kernel.py::function or kernel.cu::export"
    ),
    r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/[1-9][0-9]*$": (
        "the address of an issue or pull request, such as https://github.com/OWNER/NAME/issues/1"
    ),
    r"^[0-9a-f]{64}$": "64 hexadecimal digits",
    r"^[0-9]{1,3}\.[0-9]{1,3}$": 'two numbers with a dot between them, such as "9.0"',
}

_BY_TYPE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: SHOULD + "true or false",
    "dict_type": lambda _: SHOULD + "an object in braces",
    "float_type": lambda _: SHOULD + "a number",
    "int_from_float": lambda _: SHOULD + "a whole number",
    "int_type": lambda _: SHOULD + "a whole number",
    "list_type": lambda _: SHOULD + "a list in brackets",
    "tuple_type": lambda _: SHOULD + "a list in brackets",
    "model_type": lambda _: SHOULD + "an object in braces",
    "none_required": lambda _: SHOULD + "null",
    "string_type": lambda _: SHOULD + "text in quotes",
    "greater_than": lambda limits: SHOULD + f"above {limits['gt']}",
    "greater_than_equal": lambda limits: SHOULD + f"at least {limits['ge']}",
    "less_than": lambda limits: SHOULD + f"below {limits['lt']}",
    "less_than_equal": lambda limits: SHOULD + f"at most {limits['le']}",
    "literal_error": lambda limits: SHOULD + limits["expected"],
    "string_pattern_mismatch": lambda limits: SHOULD + FORMS.get(limits["pattern"], f"text like {limits['pattern']}"),
    "string_too_long": lambda limits: f"should have at most {_count(limits['max_length'], 'character')}",
    "string_too_short": lambda limits: f"should have at least {_count(limits['min_length'], 'character')}",
    "too_long": lambda limits: f"should have at most {_entries(limits['max_length'])}",
    "too_short": lambda limits: f"should have at least {_entries(limits['min_length'])}",
}

# What Python's parser says -> what the writer of the file can do.
_JSON = {
    "Expecting value": 'here should be a value: "text", a number, true, false, null, [ or {',
    "Expecting property name enclosed in double quotes": (
        "here should be a key in double quotes; no comma follows the last entry"
    ),
    "Expecting ',' delimiter": "here should be a comma, or the end of the list or object",
    "Expecting ':' delimiter": "here should be a colon",
    "Extra data": "here the value is over, and more text follows",
    "Unterminated string starting at": "the quote that opens here is never closed",
    "Invalid control character at": "a line break or a tab is inside quotes: write \\n or \\t",
    "Invalid \\escape": "a backslash inside quotes has no meaning here: write \\\\",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "the file begins with a byte order mark: save it without one",
}


def worded(error: Mapping[str, Any]) -> str:
    """What an error of pydantic says of a value, without the value."""
    say = _BY_TYPE.get(error["type"])
    return error["msg"] if say is None else say(error.get("ctx", {}))


def meant(error: Mapping[str, Any]) -> str:
    """A hint: the word that is most like one that is none of a few. Empty if there is none."""
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return ""
    return likely(error["input"], error["ctx"]["expected"])


def likely(word: str, expected: str) -> str:
    """A hint: the word that is most like one of those that pydantic expects, which are in quotes."""
    near = similar(word, expected.replace(" or ", ", ").replace("'", "").split(", "))
    return "" if near is None else f"{NEAR} {near!r}?"


def of_json(message: str) -> str:
    """What Python's JSON parser says, in words that name what should be there."""
    return f"not JSON: {_JSON.get(message, message)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _entries(number: int) -> str:
    return f"{number} entry" if number == 1 else f"{number} entries"
