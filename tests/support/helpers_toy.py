"""The toy family: what a stranger would keep in a folder of their own."""

import shutil
from pathlib import Path

TOY = Path(__file__).parent / "toy"
SUM, STRETCH = "toy_running_sum", "toy_unit_stretch"
NAMES = (SUM, STRETCH)
DEFINITIONS, SOLUTIONS = TOY / "definitions", TOY / "solutions"
BASE = TOY / "tests" / "known_bad" / "toy" / "bases" / "toy_right"


def copied(target: Path) -> Path:
    """The whole of it, which a test may spoil."""
    return shutil.copytree(TOY, target, ignore=shutil.ignore_patterns("__pycache__"))


def edit(file: Path, old: str, new: str) -> None:
    """Replaces a text that stands there once."""
    text = file.read_text()
    assert text.count(old) == 1, old
    file.write_text(text.replace(old, new))
