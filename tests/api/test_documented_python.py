"""The Python that README.md and the site show runs as it is written."""

import os
import re
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (name, text)
    for name in ("README.md", "docs/reference/python.md", "docs/reference/operators.md")
    for text in BLOCK.findall((ROOT / name).read_text())
]


def test_the_five_lines_are_the_same() -> None:
    five = [text for _, text in BLOCKS if "verdict" in text and "pytest" not in text]
    assert len(five) == 2
    assert len(set(five)) == 1


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=lambda x: x if x.endswith(".md") else "")
def test_a_block_runs(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / ("test_shown.py" if "import pytest" in text else "shown.py")
    judges = "verdict" in text
    file.write_text(text + ("print(verdict)\n" if judges and "import pytest" not in text else ""))
    if "import pytest" in text:
        words = ["pytest", "-q", "-p", "no:cacheprovider", str(file)]
        done = forked_command.run(words, {**os.environ}, tmp_path, script=forked_command.MODULE)
    else:
        done = forked_command.run([], {**os.environ}, tmp_path, script=file)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {"import pytest": "11 passed", "verdict": "13 of 13 workloads passed", "print(kernel)": "gdnspec.Kernel"}
    for word, wanted in shown.items():
        assert word not in text or wanted in done.stdout, done.stdout
