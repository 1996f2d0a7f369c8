"""Mutations of JSON documents and of their bytes, each with what is known of it by construction."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from jsonschema import Draft202012Validator

Place = tuple[str | int, ...]  # the way from a document's root to a value

# --- trees ------------------------------------------------------------------------------------------------------

RAW, TWICE = "@raw@", "@twice@"


@dataclass(frozen=True)
class Raw:
    """A token to be written as it is, JSON or not."""

    token: str


def text_of(tree: Any) -> str:
    """JSON text; `Raw` tokens as they are, and a key that begins with TWICE as a second one of its name."""
    raw: list[str] = []

    def hold(value: Any) -> str:
        assert isinstance(value, Raw)
        raw.append(value.token)
        return RAW

    text = json.dumps(tree, default=hold).replace(f'"{TWICE}', '"')
    for token in raw:
        text = text.replace(f'"{RAW}"', token, 1)
    return text


def places(tree: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value of a document with its place, the root first."""
    yield at, tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def replaced(tree: Any, at: Place, new: Any) -> Any:
    """The document with another value at a place; what is beside the way there is shared."""
    if not at:
        return new
    copy = tree.copy()
    copy[at[0]] = replaced(tree[at[0]], at[1:], new)
    return copy


def pointer(at: Place) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in at)


# --- what is known of a value ------------------------------------------------------------------------------------


class Schema:
    """What a model's JSON schema says of each place of a document."""

    def __init__(self, model: Any) -> None:
        self.root = model.model_json_schema()
        self._validators: dict[int, Draft202012Validator] = {}

    def at(self, tree: Any, place: Place) -> dict[str, Any]:
        """The schema of a place; {} where anything may stand."""
        schema = self._resolved(self.root, tree)
        for part in place:
            tree = tree[part]
            schema = self._resolved(self._below(schema, part), tree)
        return schema

    def _below(self, schema: dict[str, Any], part: str | int) -> dict[str, Any]:
        if isinstance(part, int):
            found = schema.get("items", {})
        elif part in schema.get("properties", {}):
            found = schema["properties"][part]
        else:
            found = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties", {}))
        return found if isinstance(found, dict) else {}

    def _resolved(self, schema: dict[str, Any], value: Any) -> dict[str, Any]:
        """References followed, and of several schemas the one that a shipped value is of."""
        if "$ref" in schema:
            return self._resolved(self.root["$defs"][schema["$ref"].split("/")[-1]], value)
        several = schema.get("anyOf", schema.get("oneOf"))
        if several is None or not isinstance(value, dict | list):
            return schema
        return next((self._resolved(one, value) for one in several if self.takes(one, value)), {})

    def takes(self, schema: dict[str, Any], value: Any) -> bool:
        if not schema:
            return True
        key = id(schema)  # a part of the root
        if key not in self._validators:
            self._validators[key] = Draft202012Validator({"$defs": self.root.get("$defs", {}), **schema})
        return self._validators[key].is_valid(value)

    def declared(self, tree: Any, place: Place) -> dict[str, Any]:
        """The schema of a place as its owner declares it, all alternatives included."""
        return self._below(self.at(tree, place[:-1]), place[-1]) if place else self.root

    def refuses(self, tree: Any, place: Place, value: Any) -> bool:
        return not self.takes(self.declared(tree, place), value)


def kind(value: Any) -> str:
    """The JSON type, numbers being one."""
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


ANYTHING = {"environment", "arguments"}  # below them any JSON stands
EITHER = {"shape"}  # its elements are names or numbers


def of_another_kind(place: Place, old: Any, new: Any) -> bool:
    """Whether a value of the new one's type can never stand where the old one does, whatever the models declare."""
    if ANYTHING & set(place) or "null" in (kind(old), kind(new)):
        return False
    if len(place) > 1 and place[-2] in EITHER and {kind(old), kind(new)} == {"string", "number"}:
        return False
    return kind(old) != kind(new)


# --- mutations ---------------------------------------------------------------------------------------------------

NO_JSON = [
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "+1", ".5", "1.", "0x10", "1_000", "1e+", "--1", "True",
    "None", "'a'", "undefined", "\uff11", '"\x00"', '"\n"', '"\x1b[31m"', '"\\x41"', '"\\ud8"', '"\\u00zz"', '"',
    "1" * 5000, "[" * 3000, "/**/1", "1 2", ",",
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 7, 1.5, 0.0, -0.0, 1e308, 5e-324, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30),
    10**400, "", " ", "x", "0", "1", "NaN", "null", "True", "\x00", "\ud800", "a\nb", "\ufeff", "\u202e", "é" * 150,
    "/etc/passwd", "../../x", "(" * 300, "1/0", "'a'", "1e999", "zzz + 1", "x" * 5000,
    [], [[]], [None], [0], ["x"], {}, {"a": 1}, {"": None},
]  # fmt: skip
KEYS = ["", " ", "unknown_key", "nam", "Name", "$ref", "__class__", "a/b~c", "\x1b[31m", "\ud800", "\x00", "k" * 3000]


@dataclass(frozen=True)
class Mutant:
    """A changed document. `refused`: it cannot be right, by construction; then a problem should point at `near`."""

    what: str
    tree: Any
    refused: bool = False
    near: Place | None = None

    @cached_property
    def text(self) -> str:
        return text_of(self.tree)

    @property
    def literal(self) -> Any:
        """What the text says, to a reader without models."""
        return json.loads(self.text)


@dataclass(frozen=True)
class Mutator:
    """Makes mutants of a shipped document of one model."""

    schema: Schema
    tree: Any

    @cached_property
    def places(self) -> list[tuple[Place, Any]]:
        return list(places(self.tree))

    def one(self, rng: random.Random, below: Place = ()) -> Mutant:
        """A mutation of a place at random."""
        spots = [spot for spot in self.places if spot[0][: len(below)] == below]
        return rng.choice(self._at(*rng.choice(spots)))()

    def some(self, count: int, rng: random.Random) -> Iterator[Mutant]:
        """A sample of all mutations; of a small document no mutation twice."""
        if len(self.places) > 60:
            yield from (self.one(rng) for _ in range(count))
            return
        every = [make for place, value in self.places for make in self._at(place, value)]
        for make in rng.sample(every, min(count, len(every))):
            yield make()

    def _at(self, place: Place, value: Any) -> list[Callable[[], Mutant]]:
        made: list[Callable[[], Mutant]] = []
        made += [partial(self._value, place, new) for new in (*ODD, *self._kin(value))]
        made += [partial(self._raw, place, token) for token in NO_JSON]
        if isinstance(value, dict):
            made += [partial(self._added, place, key) for key in KEYS]
            for key in value:
                made += [partial(self._deleted, place, key)]
                made += [partial(self._renamed, place, key, new) for new in misspelt(key)]
                made += [partial(self._doubled, place, key, new) for new in (value[key], None)]
        return made

    def _kin(self, value: Any) -> list[Any]:
        """Values like the one that stands there."""
        if isinstance(value, bool):
            return [not value, int(value), str(value).lower()]
        if isinstance(value, int | float) and abs(value) < 1e300:
            return [float(value), -value, value + 1, value + 0.5, value * 10**20, str(value), [value], value != 0]
        if isinstance(value, str):
            near = [value + x for x in (" ", "\n", "\x00", "\u200b", "x", "/", "\ud800")]
            return [*near, " " + value, value.upper(), value[:-1], value[1:], value[::-1], value * 2, [value]]
        if isinstance(value, list):
            items = [[*value, odd] for odd in (None, True, -1, 1.5, "x", [], {})]
            swapped = [value[:0:-1], value[1:] + value[:1], [*value, *value], value[1:], value[:-1], [value]]
            return [*items, *swapped, dict(enumerate(value)), value * 300]
        if isinstance(value, dict):
            return [list(value), list(value.values()), [value], dict(list(value.items())[:1]), str(value)]
        return []

    def _value(self, place: Place, new: Any) -> Mutant:
        old = self.tree
        for part in place:
            old = old[part]
        refused = of_another_kind(place, old, new) or self.schema.refuses(self.tree, place, new)
        tree = replaced(self.tree, place, new)
        return Mutant(f"{pointer(place)} = {str(new)[:60]!r}", tree, refused, place)

    def _raw(self, place: Place, token: str) -> Mutant:
        return Mutant(f"{pointer(place)} = {token[:20]} as a token", replaced(self.tree, place, Raw(token)), True)

    def _object(self, place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
        value = self.tree
        for part in place:
            value = value[part]
        return value, self.schema.at(self.tree, place)

    def _closed(self, schema: dict[str, Any], key: str) -> bool:
        return schema.get("additionalProperties") is False and key not in schema["properties"]

    def _added(self, place: Place, key: str) -> Mutant:
        value, schema = self._object(place)
        tree = replaced(self.tree, place, {**value, key: 1})
        return Mutant(f"{pointer(place)} with a key {key[:20]!r}", tree, self._closed(schema, key), place)

    def _deleted(self, place: Place, key: str) -> Mutant:
        value, schema = self._object(place)
        tree = replaced(self.tree, place, {k: v for k, v in value.items() if k != key})
        return Mutant(f"{pointer(place)} without {key!r}", tree, key in schema.get("required", ()), place)

    def _renamed(self, place: Place, key: str, new: str) -> Mutant:
        value, schema = self._object(place)
        tree = replaced(self.tree, place, {new if k == key else k: v for k, v in value.items()})
        return Mutant(f"{pointer(place)}: {key!r} called {new!r}", tree, self._closed(schema, new), place)

    def _doubled(self, place: Place, key: str, second: Any) -> Mutant:
        value, _ = self._object(place)
        tree = replaced(self.tree, place, {**value, TWICE + key: second})
        return Mutant(f"{pointer(place)}: {key!r} twice", tree, True)


def misspelt(key: str) -> list[str]:
    return [key[:-1], key.upper() if key != key.upper() else key.lower(), key[::-1] + "_", key + " ", key + "\u200b"]


# --- damage to bytes ---------------------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> tuple[str, bytes, bool]:
    """A file of JSON objects with its bytes changed: how, the bytes, and whether it cannot be right any more.

    What is inserted goes between the first and the last brace, and so into a document.
    """
    start, end = content.index(b"{") + 1, content.rindex(b"}")
    at = rng.randint(start, end)
    how = rng.choice(["control", "bad_utf8", "bom", "wide", "flip", "delete", "insert", "repeat", "swap", "garbage"])
    match how:
        case "control":  # JSON knows four characters below a space, and none within a string
            byte = bytes([rng.choice([c for c in range(0x20) if c not in b"\t\n\r"])])
            return how, content[:at] + byte + content[at:], True
        case "bad_utf8":
            byte = rng.choice(
                [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\xf4\x90\x80\x80"]
            )
            return how, content[:at] + byte + content[at:], True
        case "bom":
            return how, b"\xef\xbb\xbf" + content, True
        case "wide":
            return how, content.decode().encode(rng.choice(["utf-16", "utf-16-le", "utf-32"])), True
        case "garbage":
            return how, content.rstrip() + rng.choice([b"}", b"]", b",", b" 1", b"\x00", b"{}", b'"']), True
        case "flip":
            return (
                how,
                content[:at] + bytes([content[min(at, end)] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
                False,
            )
        case "delete":
            return how, content[:at] + content[min(end, at + rng.choice([1, 1, 2, 9, 80])) :], False
        case "insert":
            return how, content[:at] + bytes([rng.randrange(0x20, 0x7F)]) + content[at:], False
        case "repeat":
            return how, content[:at] + content[max(start, at - rng.choice([1, 5, 40])) : at] + content[at:], False
    a, b = sorted((at, rng.randint(start, end)))
    return how, content[:a] + content[b:end] + content[a:b] + content[end:], False
