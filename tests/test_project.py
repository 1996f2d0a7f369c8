"""The files around the code that a newcomer reads first agree with the code and with each other."""

import re
from pathlib import Path

import pytest
import yaml
from gdnspec import __version__

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_the_changelog_has_this_version_and_what_is_not_released() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in headings


def test_a_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert {"cff-version", "title", "authors", "message", "license"} <= cited.keys()


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_forms_and_workflows_can_be_read(file: Path) -> None:
    read = yaml.safe_load(file.read_text())
    if "body" in read:
        assert {"name", "description", "body"} <= read.keys()
        ids = [part["id"] for part in read["body"]]
        assert len(ids) == len(set(ids))


def test_workflows_call_targets_that_make_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    texts = [*FORMS, ROOT / "RELEASING.md", ROOT / ".ci" / "run"]
    called = {name for file in texts for name in re.findall(r"\bmake ([a-z][a-z-]+)\b", file.read_text())}
    assert called - targets == set()


def test_hooks_before_a_commit_are_those_of_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = " ".join(hook["entry"] for hook in hooks)
    lint = re.findall(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)[0]
    for tool in re.findall(r"\$\(BIN\)/(\S+)", lint):
        assert f".venv/bin/{tool}" in entries, tool
