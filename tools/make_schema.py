"""Writes definitions/definition.schema.json from the pydantic models. A test fails when it is stale."""

import json
from typing import Any

from gdnspec import paths
from gdnspec.catalog.extending import ALWAYS_GIVEN, KEY
from gdnspec.model.definition import Definition

Schema = dict[str, Any]


def schema() -> str:
    body = Definition.model_json_schema()
    shapes = body.pop("$defs")
    whole = {**body, "properties": {key: value for key, value in body["properties"].items() if key != KEY}}
    partial = {f"Differing{name}": _differing(value, shapes) for name, value in shapes.items()}
    extending = {**_differing(body, shapes), "required": [KEY, *ALWAYS_GIVEN]}
    extending["properties"] |= {key: body["properties"][key] for key in ALWAYS_GIVEN} | {KEY: {"type": "string"}}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gdnspec definition",
        "if": {"required": [KEY]},
        "then": {"$ref": "#/$defs/Extending"},
        "else": {"$ref": "#/$defs/Whole"},
    }
    return json.dumps({**head, "$defs": {**shapes, **partial, "Whole": whole, "Extending": extending}}, indent=2) + "\n"


def _differing(value: Schema, shapes: Schema) -> Schema:
    """The schema of what an extending definition may give in the place of such a value."""
    match value:
        case {"$ref": str(ref)}:
            holds_keys = "properties" in shapes[ref.rpartition("/")[2]]
            return {"$ref": ref.replace("/$defs/", "/$defs/Differing")} if holds_keys else value
        case {"properties": properties}:
            given = {key: _or_null(_differing(one, shapes)) for key, one in properties.items()}
            return {**{k: v for k, v in value.items() if k != "required"}, "properties": given}
        case {"items": items} if _named(items, shapes):
            return {"anyOf": [value, {"type": "object", "additionalProperties": _or_null(_differing(items, shapes))}]}
        case {"oneOf": options} | {"anyOf": options}:
            return {"anyOf": [_differing(option, shapes) for option in options]}
        case {"type": "object", "additionalProperties": dict(entries)}:
            return {"type": "object", "additionalProperties": _or_null(entries)}
    return value


def _named(items: Schema, shapes: Schema) -> bool:
    """Whether such a list holds things that have names."""
    refs = [option["$ref"] for option in items.get("oneOf", [items]) if "$ref" in option]
    return bool(refs) and all("name" in shapes[ref.rpartition("/")[2]].get("properties", {}) for ref in refs)


def _or_null(value: Schema) -> Schema:
    return {"anyOf": [value, {"type": "null"}]}


if __name__ == "__main__":
    (paths.definitions_dir() / "definition.schema.json").write_text(schema(), encoding="utf-8")
