"""The file formats, from the models that read them."""

import inspect
import json
from typing import Any

from gdnspec.model import carried, definition, elements, family_file, fault, preset, result, solution, trace, workload
from pydantic import BaseModel

from docs.page import Page, code, table

# Which files are of a format, its models in the order in which a reader meets them, and where words about it stand.
FORMATS: list[tuple[str, str, list[type[BaseModel]]]] = [
    ("Definition", "`definitions/<family>/<name>/definition.json`. "
     "[What each field means](../../definitions/README.md).",
     [definition.Definition, elements.Conventions, elements.ConstAxis, elements.VarAxis, elements.DerivedAxis,
      elements.Tensor, elements.Part, elements.Constraint, elements.Symmetry, elements.SecondReference]),
    ("Workload", "`definitions/<family>/<name>/workloads.jsonl`, one per line. "
     "[What each field means](../../definitions/README.md).",
     [workload.Workload, workload.Judged, workload.Emulators]),
    ("Family", "`definitions/<family>/family.json`.", [family_file.FamilyFile, family_file.PresetPattern]),
    ("Preset", "`definitions/<family>/presets.json`: an object of these by name.", [preset.Preset]),
    ("Solution", "`solutions/<name>/solution.json`. "
     "[What each field means](../how-to/add-a-solution.md#the-manifest).",
     [solution.Manifest, solution.Requires, solution.Entry, solution.Variant]),
    ("Result", "What `gdnspec check --json` writes, one per line.",
     [result.CheckResult, result.OutputErrors, result.Place, result.Bucket]),
    ("Trace", "`solutions/<name>/traces/<device>.jsonl`, one per line. Times are seconds for one call.",
     [trace.Trace, trace.Timing, trace.Witness, trace.Ratio, trace.Missing, trace.Ceilings, trace.Health]),
    ("Carried traces", "`solutions/<name>/traces/carried/*.json`.", [carried.Carried, carried.SameCode]),
    ("Table of faults", "`tests/known_bad/<family>/faults.json`.", [fault.FaultTable, fault.Fault, fault.Edit]),
]  # fmt: skip

BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def pages() -> list[Page]:
    text = (
        "# File formats\n\nThis page is made from the models that read the files. Every format is closed: an unknown "
        "key is an error that names the nearest valid one. A key without a default is required.\n\n"
    )
    for title, words, models in FORMATS:
        text += f"## {title}\n\n{words}\n\n" + "".join(_model(model, title) for model in models)
    return [Page("reference/file-formats.md", text)]


def _model(model: type[BaseModel], title: str) -> str:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    rows = [
        (code(name), _type(field), "" if name in required else code(_default(field)))
        for name, field in schema["properties"].items()
    ]
    heading = "" if model.__name__ == title else f"### {model.__name__}\n\n"
    return heading + _words(model) + table(["key", "type", "default"], rows)


def _words(model: type[BaseModel]) -> str:
    text = inspect.getdoc(model) if model.__doc__ else ""
    return f"{text}\n\n" if text else ""


def _default(field: dict[str, Any]) -> str:
    """As JSON; what is made anew for each file is empty."""
    return json.dumps(field["default"]) if "default" in field else "empty"


def _type(field: dict[str, Any]) -> str:
    """A JSON type in words."""
    if "$ref" in field:
        return str(field["$ref"]).rsplit("/", 1)[1]
    if "const" in field:
        return code(field["const"])
    if "enum" in field:
        return ", ".join(map(code, field["enum"]))
    if "anyOf" in field or "oneOf" in field:
        return " or ".join(dict.fromkeys(map(_type, field.get("anyOf") or field["oneOf"])))
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_type(field['items'])}" if "items" in field else "list"
    if kind == "object":
        values = field.get("additionalProperties")
        return f"object of {_type(values)}" if isinstance(values, dict) else "object"
    bounds = [f"{word} {field[key]:g}" for key, word in BOUNDS.items() if key in field]
    return ", ".join([str(kind), *bounds])
