"""What README.md shows is what this tree gives."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_tables_are_those_that_the_tool_writes() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/make_readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_stays_short() -> None:
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.slow
def test_the_output_shown_is_what_the_command_prints(gdnspec: Run) -> None:
    """But for the largest error, which fresh workloads may move."""
    blocks = re.findall(r"<!-- output: gdnspec (.+?) -->\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    assert blocks
    for command, shown in blocks:
        done = gdnspec(*shlex.split(command), "--device", "cpu")
        assert done.returncode == 0, done.stderr
        assert _columns(shown) <= _columns(done.stdout), done.stdout


def _columns(table: str) -> set[tuple[str, ...]]:
    return {tuple(re.split(r"\s{2,}", re.sub(r"\d+% \(.*", "", line).strip())) for line in table.splitlines()}


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_commands_that_it_names_have_the_options(gdnspec: Run) -> None:
    commands = [line for block in re.findall(r"```\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
    commands += re.findall(r"`(gdnspec [^`]+)`", TEXT)
    asked = [shlex.split(line.removeprefix(".venv/bin/")) for line in commands if "gdnspec " in line[:20]]
    assert len(asked) > 8
    for _, *words in asked:
        names = [word for word in words if re.fullmatch(r"[a-z-]+", word)][: 2 if words[0] in GROUPS else 1]
        done = gdnspec(*names, "--help")
        assert done.returncode == 0, (names, done.stderr)
        for option in (word for word in words if word.startswith("--")):
            assert option in done.stdout, (words, option)


GROUPS = {"vectors", "workloads", "traces"}
