"""Writes definitions/definition.schema.json from the pydantic models. A test fails when it is stale."""

import json

from gdnspec import paths
from gdnspec.model.definition import Definition


def schema() -> str:
    body = Definition.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gdnspec definition"}
    return json.dumps({**head, **{k: v for k, v in body.items() if k != "title"}}, indent=2) + "\n"


if __name__ == "__main__":
    (paths.definitions_dir() / "definition.schema.json").write_text(schema(), encoding="utf-8")
