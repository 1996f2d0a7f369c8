"""Every list and every string of what a stranger hands in has a limit, which is met before anything is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from gdnspec.catalog.solutions import load_solution
from gdnspec.model import solution as model
from gdnspec.model.base import Model
from gdnspec.model.errors import SpecError
from gdnspec.model.fault import KnownBad
from gdnspec.model.loading import build, load
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import Manifest
from gdnspec.submission import evidence
from gdnspec.submission.bundle import BundleManifest
from gdnspec.submission.evidence import Evidence
from packaging import requirements

MANIFEST: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "language": "python", "authors": ["a test"], "license": "Apache-2.0",
    "description": "made by a test", "sources": ["kernel.py"], "deterministic": False,
    "requires": {"device": "any", "compute_capability": None, "packages": []},
    "entries": {"gdn_decode_k_last": {"entry": "kernel.py::run", "call": "return"}},
}  # fmt: skip


def unlimited(schema: Any, at: str = "") -> list[str]:
    """The places of a JSON schema where a value may be as long as it likes."""
    found = []
    if isinstance(schema, dict):
        closed = "enum" in schema or "const" in schema
        kind = schema.get("type")
        if kind == "string" and not closed and "maxLength" not in schema:
            found.append(at)
        if kind == "array" and "maxItems" not in schema:
            found.append(at)
        if kind == "object" and "properties" not in schema:
            if "maxProperties" not in schema:
                found.append(at)
            if "maxLength" not in schema.get("propertyNames", {}):
                found.append(f"{at} (keys)")
        for key, value in schema.items():
            if key != "propertyNames":
                found += unlimited(value, f"{at}/{key}")
    if isinstance(schema, list):
        for i, value in enumerate(schema):
            found += unlimited(value, f"{at}/{i}")
    return found


@pytest.mark.parametrize("closed", [Manifest, KnownBad, BundleManifest, Evidence])
def test_every_list_and_string_has_a_limit(closed: type[Model]) -> None:
    assert unlimited(closed.model_json_schema()) == []
    assert closed.most_bytes <= 1 << 20


def changed(path: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(MANIFEST))
    *folders, last = path.split("/")
    place = content
    for name in folders:
        place = place[name]
    place[last] = value
    return content


ENTRY = {"entry": "kernel.py::run", "call": "return"}
TOO_MUCH: dict[str, tuple[str, Any]] = {
    "packages": ("requires/packages", ["torch>=2.0"] * 200_000),
    "a package": ("requires/packages", ["torch" + " " * 10_000]),
    "authors": ("authors", ["a"] * 1000),
    "an author": ("authors", ["a" * 10_000]),
    "sources": ("sources", ["kernel.py"] * 1000),
    "a source": ("sources", ["kernel.py", "x" * 1000]),
    "entries": ("entries", {f"d{i}": ENTRY for i in range(1000)}),
    "an entry": ("entries/gdn_decode_k_last/entry", "kernel.py::" + "r" * 1000),
    "conditions": ("entries/gdn_decode_k_last/supports", ["True"] * 1000),
    "a condition": ("entries/gdn_decode_k_last/supports", ["1+" * 1000 + "1"]),
    "a capability": ("requires/compute_capability", "9" * 1000),
    "a description": ("description", "d" * 10_000),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much_is_refused_where_it_stands(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    class Counted(requirements.Requirement):
        def __init__(self, text: str) -> None:
            parsed.append(text)
            super().__init__(text)

    monkeypatch.setattr(requirements, "Requirement", Counted)
    path, value = TOO_MUCH[what]
    with pytest.raises(SpecError, match=f"/{path}") as refused:
        build(Manifest, changed(path, value), Path("solution.json"))
    assert len(str(refused.value)) < 10_000
    assert len(parsed) <= model.MOST_PACKAGES


def test_what_is_within_the_limits_is_read() -> None:
    content = changed("requires/packages", ["torch>=2.0"] * model.MOST_PACKAGES)
    assert len(build(Manifest, content, Path("x")).requires.packages) == model.MOST_PACKAGES


@pytest.mark.parametrize(("name", "closed"), [("solution.json", Manifest), ("known_bad.json", KnownBad)])
def test_a_file_that_is_too_large_is_not_parsed(
    tmp_path: Path, name: str, closed: type[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir()
    file.write_text(json.dumps({**MANIFEST, "x": "y" * closed.most_bytes}))
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(SpecError, match="larger than 256 KiB"):
        load_solution(file.parent) if closed is Manifest else load(closed, file)


def test_lines_of_evidence_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    row = CheckResult(definition="d", workload="w", suite="smoke", solution="s", device="cpu", status="PASSED")
    data = evidence.line(row).encode()
    monkeypatch.setattr(evidence, "MOST_LINES", 3)
    assert len(evidence.lines_of(CheckResult, data * 3, Path("v"))) == 3
    with pytest.raises(SpecError, match="more than 3 lines"):
        evidence.lines_of(CheckResult, data * 4, Path("v"))
    monkeypatch.setattr(evidence, "LONGEST_LINE", len(data) - 2)
    with pytest.raises(SpecError, match="line 1: larger than"):
        evidence.lines_of(CheckResult, data, Path("v"))
