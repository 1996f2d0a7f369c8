"""tools/make_workloads.py writes what a family lists, whichever family it is."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_command
import pytest
from conftest import ROOT

NAME = "toy_running_sum"
TOOL = ROOT / "tools" / "make_workloads.py"
# Its first line as it stands; the same for a GPU; from other inputs; and one whose budget is asked for.
LISTED = '''"""The workloads of the family."""

from collections.abc import Callable, Iterator, Sequence

from gdnspec.family import Published, SuiteError, Workload


def lines(published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
    first = published.lines[0].model_copy(update={"sha256": None, "budget": None, "emulators": None})
    yield first
    yield first.model_copy(update={"name": "far", "device": "cuda"})
    yield first.model_copy(update={"name": "other", "seed": 12345})
    asked = first.model_copy(update={"name": "asked", "seed": 23456})
    part = share(asked)
    if part is None or not 0 < part < 1:
        raise SuiteError(f"honest arithmetic takes {part} of a budget")
    yield asked
    yield first.model_copy(update={"name": "left_out", "regime": None, "seed": None, "tensors": "tensors/none"})


def table(published: Sequence[Published]) -> str:
    return "\\n".join(f"{each.definition.name}: {len(each.lines)} lines\\n" for each in published)
'''
WITH = """
from dataclasses import replace


def listed():
    from .suites import listed

    return listed


FAMILY = replace(FAMILY, suites={})
"""

Tool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of families of a copy of the toy."""
    shutil.copytree(ROOT / "tests" / "support" / "toy", tmp_path / "toy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "toy" / "definitions"


def give(toy: Path, suites: str, listed: str = LISTED) -> None:
    """Gives the family suites, or None."""
    code = toy.parent / "reference" / "toy"
    (code / "suites").mkdir(exist_ok=True)
    (code / "suites" / "listed.py").write_text(listed)
    with (code / "family.py").open("a") as file:
        file.write(WITH.format(suites))


@pytest.fixture
def tool(toy: Path) -> Tool:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return forked_command.run([*arguments, "--definitions-dir", str(toy)], dict(os.environ), script=TOOL)

    return run


def rows(toy: Path) -> dict[str, dict[str, Any]]:
    file = toy / "toy" / NAME / "workloads.jsonl"
    return {row["name"]: row for row in map(json.loads, file.read_text().splitlines())}


def test_it_writes_the_lines_with_hashes_and_keeps_budgets(toy: Path, tool: Tool) -> None:
    before = next(iter(rows(toy).values()))
    give(toy, "listed")
    done = tool(NAME)
    assert done.returncode == 0, done.stderr
    assert f"{NAME} left_out left out: no tensors/none" in done.stdout
    after = rows(toy)
    assert list(after) == [before["name"], "far", "other", "asked"]
    assert after[before["name"]] == before
    assert after["far"]["sha256"] == before["sha256"]
    assert "budget" not in after["far"]
    assert after["other"]["sha256"] != before["sha256"]
    assert "budget" not in after["other"]
    assert after["asked"]["budget"], "it was measured, and need not be frozen again"

    again = tool(NAME)
    assert again.returncode == 0, again.stderr
    assert rows(toy) == after


@pytest.mark.slow
@pytest.mark.thorough
def test_fast_leaves_hashes_for_a_gpu(toy: Path, tool: Tool) -> None:
    give(toy, "listed")
    assert tool(NAME).returncode == 0
    file, drawn = toy / "toy" / NAME / "workloads.jsonl", rows(toy)["far"]["sha256"]
    *_, other = (row["sha256"] for row in rows(toy).values())
    changed = [row | {"sha256": "0" * 64} if row["name"] == "far" else row for row in rows(toy).values()]
    file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert tool(NAME, "--fast").returncode == 0
    assert (rows(toy)["far"]["sha256"], rows(toy)["asked"]["sha256"]) == ("0" * 64, other)
    assert tool(NAME).returncode == 0
    assert rows(toy)["far"]["sha256"] == drawn


def test_the_table_goes_between_its_marks(toy: Path, tool: Tool) -> None:
    give(toy, "listed")
    readme, count = toy / "toy" / "README.md", len(rows(toy))
    done = tool(NAME, "--table")
    assert done.returncode == 2
    assert "README.md: no place for the table" in done.stderr
    begin, end = "<!-- coverage: begin (python tools/make_workloads.py --table writes it) -->", "<!-- coverage: end -->"
    readme.write_text(f"Before\n{begin}\nold\n{end}\nafter\n")
    done = tool(NAME, "--table")
    assert done.returncode == 0, done.stderr
    text = readme.read_text()
    assert text.startswith(f"Before\n{begin}\n\n")
    assert f"{NAME}: {count} lines\n" in text
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize("option", ["--fast", "--table"])
def test_a_family_without_suites_is_one_line_and_exit_code_2(toy: Path, tool: Tool, option: str) -> None:
    give(toy, "None")
    before = (toy / "toy" / NAME / "workloads.jsonl").read_bytes()
    done = tool(NAME, option)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "reference/toy/family.py: this family ships no suites" in done.stderr
    assert (toy / "toy" / NAME / "workloads.jsonl").read_bytes() == before


def test_what_a_family_refuses_is_one_line_and_leaves_the_file(toy: Path, tool: Tool) -> None:
    give(toy, "listed", LISTED.replace("not 0 < part < 1", "part > 0"))
    before = (toy / "toy" / NAME / "workloads.jsonl").read_bytes()
    done = tool(NAME)
    assert done.returncode == 2
    assert done.stderr.startswith(f"make_workloads: {NAME}: honest arithmetic takes 0.")
    assert (toy / "toy" / NAME / "workloads.jsonl").read_bytes() == before


def test_an_unknown_definition_and_folder_are_told(tool: Tool, tmp_path: Path) -> None:
    done = tool("toy_runing_sum")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'toy_running_sum'" in done.stderr
    done = tool(NAME, "--definitions-dir", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such folder" in done.stderr
