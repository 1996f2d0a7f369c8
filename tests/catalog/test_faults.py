"""Tables of faults: what a row makes, what is refused, and which solutions may be folders."""

import difflib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec import paths
from gdnspec.catalog.faults import (
    BASES,
    bases,
    honest,
    known_bad,
    read_table,
    rejections,
)
from gdnspec.catalog.solutions import MANIFEST
from gdnspec.model.errors import SpecError
from gdnspec.model.fault import KNOWN_BAD_FILE, TABLE_FILE

ROOT_OF_BAD = ROOT / "tests" / "known_bad"
TABLES = sorted(ROOT_OF_BAD.glob(f"*/{TABLE_FILE}"))
NEAREST = 9  # lines in which a folder differs from every base, or it is a row

KERNEL = '''"""A decode step."""

import torch


def decode(state, v, **inputs):
    S = state * 1
    S = S * 1
    S = S * 1
    return torch.zeros_like(v), S
'''
MANIFEST_OF_BASE = {
    "schema_version": 1, "name": "base", "language": "python", "authors": ["a"], "license": "Apache-2.0",
    "description": "A decode step.", "sources": ["kernel.py"], "deterministic": False,
    "requires": {"device": "any", "compute_capability": None, "packages": []},
    "entries": {"gdn_decode_k_last": {"entry": "kernel.py::decode", "call": "return"}},
}  # fmt: skip
EDIT = {"file": "kernel.py", "correct": ["    S = state * 1"], "wrong": ["    S = state * 2  # WRONG: 1", "    S += 0"]}
ROW: dict[str, Any] = {
    "name": "doubled", "base": "base", "definitions": ["gdn_decode_k_last"], "kind": "wrong", "fault": "Twice as much.",
    "source": "trap: factors", "edits": [EDIT], "statuses": ["INCORRECT_NUMERICAL"],
}  # fmt: skip

Make = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A family with one base and these rows: its table."""

    def make(*rows: dict[str, Any]) -> Path:
        family = tmp_path / "known_bad" / "mine"
        base = family / BASES / "base"
        base.mkdir(parents=True)
        (base / MANIFEST).write_text(json.dumps(MANIFEST_OF_BASE))
        (base / "kernel.py").write_text(KERNEL)
        (family / TABLE_FILE).write_text(json.dumps({"schema_version": 1, "faults": list(rows)}))
        monkeypatch.setattr(paths, "known_bad_dir", lambda: family.parent)
        monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path / "cache"))
        return family / TABLE_FILE

    return make


def edit(**changes: Any) -> dict[str, Any]:
    return {**EDIT, **changes}


# --- what a row makes -------------------------------------------------------------------------------------------


def test_a_row_becomes_a_solution_of_its_own(table: Make) -> None:
    table({**ROW, "killed_by": ["one_row"], "manifest": {"deterministic": True, "supports": ["batch_size == 8"]}})
    (bad,) = known_bad()
    kernel = KERNEL.replace("    S = state * 1\n", "    S = state * 2  # WRONG: 1\n    S += 0\n")
    assert (bad.solution.folder / "kernel.py").read_text() == kernel
    manifest = bad.solution.manifest
    assert (manifest.name, manifest.description) == ("doubled", "Wrong on purpose. Twice as much.")
    assert manifest.deterministic
    assert manifest.entries["gdn_decode_k_last"].supports == ["batch_size == 8"]
    assert manifest.entries["gdn_decode_k_last"].entry == "kernel.py::decode"
    assert bad.known.killed_by == ["one_row"]
    assert rejections() == {"doubled": bad.known}


def test_a_row_is_written_once_and_again_when_it_changes(table: Make) -> None:
    file = table(ROW)
    (first,) = known_bad()
    kernel = first.solution.folder / "kernel.py"
    before = kernel.stat()
    (again,) = known_bad()
    assert again.solution.folder == first.solution.folder
    assert kernel.stat().st_ino == before.st_ino, "it was there"
    kernel.write_text("damaged")
    known_bad()
    assert "WRONG" in kernel.read_text(), "it is written again"
    base = file.parent / BASES / "base" / "kernel.py"
    base.write_text(base.read_text() + "\n# more\n")
    (changed,) = known_bad()
    assert changed.solution.folder != first.solution.folder


def test_a_row_may_serve_what_its_base_does_not(table: Make) -> None:
    table({**ROW, "definitions": ["gdn_decode_k_first"], "manifest": {"entry": "kernel.py::decode", "call": "return"}})
    (bad,) = known_bad()
    assert set(bad.solution.manifest.entries) == {"gdn_decode_k_first"}


def test_edits_find_their_places_in_the_base(table: Make) -> None:
    """Not in what another edit has made."""
    other = edit(correct=["    return torch.zeros_like(v), S"], wrong=["    S = state * 1", "    return v * 0, S"])
    table({**ROW, "edits": [EDIT, other]})
    (bad,) = known_bad()
    text = (bad.solution.folder / "kernel.py").read_text()
    assert text.count("S = state * 1") == text.count("S = state * 2") == 1


def test_those_that_are_named_are_made_and_no_other(table: Make, tmp_path: Path) -> None:
    table(ROW, {**ROW, "name": "other"})
    assert [item.solution.name for item in known_bad(["other"])] == ["other"]
    assert [folder.name for folder in (tmp_path / "cache" / "faults").glob("*/*")] == ["other"]
    assert known_bad([]) == []


def test_a_base_is_honest(table: Make) -> None:
    table(ROW)
    assert [solution.name for solution in bases()] == ["base"]
    assert "base" in [solution.name for solution in honest()]


# --- what is refused --------------------------------------------------------------------------------------------

TWICE = ["    S = S * 1"]
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # a row that follows `ROW` under the name "second", where the problem is, and what is said
    "missing text": ({"edits": [edit(correct=["    S = state"])]}, "/edits/0/correct", "the text is not in kernel.py"),
    "text twice": ({"edits": [edit(correct=TWICE)]}, "/edits/0/correct", "occurs 2 times in kernel.py"),
    "overlap": ({"edits": [EDIT, edit(correct=[*EDIT["correct"], *TWICE])]}, "/edits/1/correct", "another edit"),
    "no such base": ({"base": "bose"}, "/base", "did you mean 'base'?"),
    "name twice": ({"name": "doubled"}, "/name", "row /faults/0 already has the name"),
    "name of a base": ({"name": "base"}, "/name", "a base of this table already has the name"),
    "name of a folder": ({"name": "a_folder"}, "/name", "already has the name 'a_folder'"),
    "outside": ({"edits": [edit(file="../base/kernel.py")]}, "/edits/0/file", "is not a source of the base"),
    "no change": ({"edits": [edit(wrong=EDIT["correct"])]}, "/edits/0/wrong", "changes nothing"),
    "line break": ({"edits": [edit(wrong=["a\nb"])]}, "/edits/0/wrong/0", "line break"),
    "not served": ({"definitions": ["gdn_decode_k_first"]}, "/definitions/0", "does not serve 'gdn_decode_k_first'"),
    "no such function": ({"manifest": {"entry": "kernel.py::decoded"}}, "", "did you mean 'decode'?"),
    "no such source": ({"manifest": {"entry": "more.py::decode"}}, "", "'more.py' is not among the sources"),
    "not Python": ({"edits": [edit(wrong=["    S = ("])]}, "", "not Python"),
    "unknown key": ({"sauce": "x"}, "/sauce", "unknown key 'sauce'"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_row_is_refused_with_its_place(table: Make, what: str) -> None:
    row, place, says = REFUSED[what]
    file = table(ROW, {**ROW, "name": "second", **row})
    (file.parent / "a_folder").mkdir()
    with pytest.raises(SpecError) as refused:
        known_bad()
    (problem,) = refused.value.problems
    assert problem.file == file
    assert problem.place == f"/faults/1{place}"
    assert says in str(problem)


def test_every_problem_of_a_table_is_told_at_once(table: Make) -> None:
    table({**ROW, "base": "none"}, {**ROW, "name": "second", "edits": [edit(correct=TWICE)]})
    with pytest.raises(SpecError) as refused:
        known_bad()
    assert [problem.place for problem in refused.value.problems] == ["/faults/0/base", "/faults/1/edits/0/correct"]


def test_a_name_stands_for_one_row_of_all_families(table: Make) -> None:
    family = table(ROW).parent
    shutil.copytree(family, family.parent / "other")
    with pytest.raises(
        SpecError, match=r"other/faults\.json: /faults/0/name: a row of .* already has the name 'doubled'"
    ):
        known_bad()


def test_a_cache_that_cannot_be_written_is_said(table: Make, tmp_path: Path) -> None:
    table(ROW)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(SpecError, match=r"cannot be written: .*set GDNSPEC_CACHE to move the cache"):
        known_bad()


def test_validate_reads_tables_and_ends_in_exit_code_2(gdnspec: Run, table: Make) -> None:
    file = table(ROW)
    done = gdnspec("validate", file.parent)
    assert (done.returncode, done.stdout) == (0, "2 files valid\n"), done.stderr
    file.write_text(file.read_text().replace('"base": "base"', '"base": "bose"'))
    done = gdnspec("validate", file.parent)
    assert done.returncode == 2
    assert "faults.json: /faults/0/base: no base 'bose'" in done.stderr
    assert "Traceback" not in done.stderr


# --- what is shipped --------------------------------------------------------------------------------------------


def body(kernel: Path) -> list[str]:
    """Its lines, less the first docstring."""
    text = kernel.read_text()
    return (text.split('"""', 2)[2] if text.startswith('"""') else text).strip().splitlines()


def changed(one: list[str], other: list[str]) -> int:
    """How many lines a diff removes and adds."""
    return sum(line[0] in "+-" for line in list(difflib.unified_diff(one, other, lineterm="", n=0))[2:])


def base_folders(file: Path) -> dict[str, Path]:
    """Those beside the table, and the solutions that rows name."""
    beside = {folder.name: folder for folder in (file.parent / BASES).glob("*")}
    return {row.fault.base: ROOT / "solutions" / row.fault.base for row in read_table(file)} | beside


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.parent.name)
def test_a_folder_is_far_from_every_base(file: Path) -> None:
    right = {name: body(folder / "kernel.py") for name, folder in base_folders(file).items()}
    folders = sorted(each.parent for each in file.parent.glob(f"*/{KNOWN_BAD_FILE}"))
    assert len(folders) > 5 or file.parent.name != "gdn"
    near = {
        (folder.name, base): lines
        for folder in folders
        for base, kernel in right.items()
        if (lines := changed(kernel, body(folder / "kernel.py"))) < NEAREST
    }
    assert not near, "these are rows of faults.json"


def test_the_nine_lines_are_counted_on_both_sides() -> None:
    assert changed(["a", "b", "c"], ["a", "x", "y", "c", "d"]) == 4


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.parent.name)
def test_every_base_has_rows_and_every_row_says_what_is_wrong(file: Path) -> None:
    rows = read_table(file)
    assert {folder.name for folder in (file.parent / BASES).glob("*")} <= {row.fault.base for row in rows}
    for row in rows:
        assert re.match(r"trap: |public: ", row.fault.source), row.fault.name
        wrong = "\n".join(line for each in row.fault.edits for line in each.wrong)
        assert row.fault.kind == "cheat" or "# WRONG" in wrong, row.fault.name


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.parent.name)
def test_a_public_report_that_is_named_is_there(file: Path) -> None:
    named = {row.fault.source for row in read_table(file) if row.fault.source.startswith("public: ")}
    assert named
    for source in named:
        document, section, row = re.fullmatch(r"public: (\S+), section (\d+), row (\d+)", source).groups()  # type: ignore
        text = (ROOT / document).read_text().split(f"\n## {section}. ")[1].split("\n## ")[0]
        assert f"\n| {row} |" in text, source


def test_each_report_on_kimi_delta_attention_has_a_fault() -> None:
    """Those that its page names by number; a report on how outputs are compared is none on a kernel."""
    (table,) = (file for file in TABLES if file.parent.name == "kda")
    page = (ROOT / "definitions/kda/README.md").read_text()
    rows = [row for row in re.findall(r"^\| \d+ \|.*", page, re.MULTILINE) if "outputs are equal" not in row]
    numbers = {number for row in rows for number in re.findall(r"#(\d+)", row)}
    assert len(numbers) >= 10
    assert numbers <= {url.rpartition("/")[2] for row in read_table(table) for url in row.fault.reports or ()}


def test_there_are_few_files() -> None:
    assert sum(len(files) for _, _, files in os.walk(ROOT_OF_BAD)) < 200
