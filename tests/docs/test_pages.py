"""Every block of output on a page of the site is what the commands print.

A `console` block is run: its `gdnspec` lines one after the other, all blocks of a page in one folder. A line `...`
stands for any lines, `...` within a line for any words; decimal fractions may differ by a tenth. The progress line
`checking ..` is left out. A comment before a block says otherwise:

    <!-- not run: why -->          nothing is run
    <!-- thorough -->              `make test-all` runs it
    <!-- file: path -->            the block is written to this file
    <!-- replace: path -->         the block is a diff: its `-` lines become its `+` lines
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, Run

BLOCK = re.compile(r"(?:<!-- (?P<mark>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@dataclass(frozen=True)
class Block:
    kind: str
    mark: str
    text: str

    @property
    def runs(self) -> bool:
        return self.kind == "console" and not self.mark.startswith("not run")


def blocks(page: Path) -> list[Block]:
    return [Block(m["kind"], m["mark"] or "", m["text"]) for m in BLOCK.finditer(page.read_text())]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = part.rstrip("\n").split("\n")
        yield command, lines


def matches(wanted: list[str], printed: list[str]) -> bool:
    """Whether `printed` are the wanted lines, with `...` for anything."""
    if not wanted:
        return not printed
    if wanted[0] == "...":
        return any(matches(wanted[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and alike(wanted[0], printed[0]) and matches(wanted[1:], printed[1:])


def alike(wanted: str, printed: str) -> bool:
    if wanted.startswith("device: "):  # another machine, other walls
        return printed.startswith("device: ")
    wanted, printed = (" ".join(line.split()) for line in (wanted, printed))
    pattern = ".*".join(map(re.escape, NUMBER.sub("#", wanted).split("...")))
    if re.fullmatch(pattern, NUMBER.sub("#", printed)) is None:
        return False
    pairs = zip(NUMBER.findall(wanted), NUMBER.findall(printed), strict=False)
    return "..." in wanted or all(abs(float(a) - float(b)) <= 0.1 * abs(float(a)) for a, b in pairs)


def lines_of(text: str) -> list[str]:
    text = re.sub(r"^checking \S+ on \S+\n", "", text, flags=re.MULTILINE).strip("\n")
    return [line.rstrip() for line in text.split("\n")] if text else []


def perform(block: Block, folder: Path, gdnspec: Run) -> None:
    if block.mark.startswith("file: "):
        (folder / block.mark.removeprefix("file: ")).write_text(block.text)
    elif block.mark.startswith("replace: "):
        file = folder / block.mark.removeprefix("replace: ")
        old, new = ("".join(f"{x[1:]}\n" for x in block.text.splitlines() if x[0] == sign) for sign in "-+")
        text = file.read_text()
        assert text.count(old) == 1, old
        file.write_text(text.replace(old, new))
    elif block.runs:
        for command, wanted in commands(block.text):
            program, *words = shlex.split(command)
            assert program == "gdnspec", f"say why it is not run: {command}"
            done = gdnspec(*words, cwd=folder)
            streams = lines_of(done.stdout), lines_of(done.stderr), lines_of(done.stderr + done.stdout)
            assert any(matches([w.rstrip() for w in wanted], got) for got in streams), (
                f"{command}\n--- printed\n{done.stdout}\n--- on stderr\n{done.stderr}"
            )


def run(page: Path, folder: Path, gdnspec: Run, *, thorough: bool) -> None:
    (folder / "samples").symlink_to(ROOT / "samples")
    for block in blocks(page):
        if block.mark != "thorough" or thorough:
            perform(block, folder, gdnspec)


WITH_COMMANDS = [page for page in PAGES if any(block.runs for block in blocks(page))]
THOROUGH = [page for page in PAGES if any(block.mark == "thorough" for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path, gdnspec: Run) -> None:
    run(page, tmp_path, gdnspec, thorough=False)


@pytest.mark.thorough
@pytest.mark.parametrize("page", THOROUGH, ids=lambda page: page.stem)
def test_a_page_shows_what_its_long_commands_print(page: Path, tmp_path: Path, gdnspec: Run) -> None:
    run(page, tmp_path, gdnspec, thorough=True)


def test_the_tutorials_are_run() -> None:
    assert {page.stem for page in WITH_COMMANDS} >= {"first-kernel", "error-pattern", "request-log", "index"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_is_run_or_says_why_not(page: Path) -> None:
    known = re.compile(r"not run: \w.{8,}|thorough|file: \S+|replace: \S+|")
    for block in blocks(page):
        assert known.fullmatch(block.mark), block.mark
        assert block.kind in ("console", "python", "diff", "sh", "json", "toml", ""), block.kind
        assert block.kind == "console" or not block.text.startswith("$ "), block.text


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "..."], ["b"], False),
        (["error 1.015 > 0.0039"], ["error 1.02 > 0.0039"], True),
        (["error 1.015"], ["error 2.03"], False),
        (["12 of 13"], ["13 of 13"], False),
        (["a  b"], ["a b"], True),
        (["in ... s"], ["in 75.2 s"], True),
        ([], ["said"], False),
    ],
)
def test_how_lines_are_compared(wanted: list[str], printed: list[str], same: bool) -> None:
    assert matches(wanted, printed) is same
