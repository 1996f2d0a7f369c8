"""What a mistake in a file is called: in words of the file, not of the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gdnspec.model.carried import Carried
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.model.fault import FaultTable
from gdnspec.model.loading import from_text
from gdnspec.model.preset import Presets
from gdnspec.model.session_line import SessionLine
from gdnspec.model.solution import Manifest
from gdnspec.model.vectors import VectorsManifest
from gdnspec.model.wording import FORMS
from gdnspec.model.workload import Workload

MANIFEST = {
    "schema_version": 1, "name": "mine", "language": "python", "authors": ["me"], "license": "MIT",
    "description": "A kernel.", "sources": ["kernel.py"], "requires": {"device": "any"}, "deterministic": False,
    "entries": {"op": {"entry": "kernel.py::op", "call": "return"}},
}  # fmt: skip
ENTRY = {"entry": "kernel.py::op", "call": "return"}
WRONG = {
    "no list": ({"authors": "me"}, '/authors: should be a list in brackets, not "me"'),
    "an empty list": ({"sources": []}, "/sources: should have at least 1 entry, not []"),
    "no object": ({"requires": 5}, "/requires: should be an object in braces, not 5"),
    "no text": (
        {"requires": {"device": "any", "compute_capability": 9.0}},
        "/requires/compute_capability: should be text in quotes, not 9.0",
    ),
    "no switch": ({"deterministic": "yes"}, '/deterministic: should be true or false, not "yes"'),
    "a word that is none of them": (
        {"language": "trition"},
        "/language: should be 'python', 'triton' or 'cuda', not \"trition\" (did you mean 'triton'?)",
    ),
    "one colon": (
        {"entries": {"op": ENTRY | {"entry": "kernel.py:op"}}},
        "/entries/op/entry: should be a file and a function, such as kernel.py::function or kernel.cu::export, "
        'not "kernel.py:op"',
    ),
}


@pytest.mark.parametrize(("change", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_told_in_plain_words(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as raised:
        from_text(Manifest, json.dumps(MANIFEST | change), Path("solution.json"))
    assert str(raised.value) == f"solution.json: {says}"


BROKEN = {
    "": 'here should be a value: "text", a number, true, false, null, [ or {',
    "{'name': 1}": "here should be a key in double quotes; no comma follows the last entry",
    '{"name": "a" "license": "b"}': "here should be a comma, or the end of the list or object",
    '{"name" "a"}': "here should be a colon",
    "{} {}": "here the value is over, and more text follows",
    '{"name": "a': "the quote that opens here is never closed",
    '{"name": "a\tb"}': "a line break or a tab is inside quotes: write \\n or \\t",
    '{"name": "\\w"}': "a backslash inside quotes has no meaning here: write \\\\",
}


@pytest.mark.parametrize("text", BROKEN)
def test_broken_json_is_told_by_what_should_be_there(text: str) -> None:
    with pytest.raises(SpecError, match=r"solution.json: line 1, column \d+: not JSON: ") as raised:
        from_text(Manifest, text, Path("solution.json"))
    assert str(raised.value).endswith(BROKEN[text])


def test_every_pattern_of_the_models_has_words() -> None:
    models = (Definition, Workload, Manifest, FaultTable, Presets, SessionLine, Carried, VectorsManifest)
    found = {pattern for model in models for pattern in patterns(model.model_json_schema())}
    assert found == set(FORMS)


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for key, part in schema.items():
            if key == "patternProperties":
                yield from part
            yield from patterns(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from patterns(part)
