"""The marker for pytest, as a project beside this one would use it."""

import os
from pathlib import Path

import forked_command

TEST = """
import gdnspec, pytest
SPEC = gdnspec.definition("gdn_decode_k_last")

@pytest.mark.gdnspec("gdn_decode_k_last", suite="smoke")
def test_right(workload):
    workload.check(lambda **inputs: SPEC.reference(**inputs)).raise_for_status()

@pytest.mark.gdnspec("gdn_decode_k_last")
def test_wrong(workload):
    if workload.name != "batch_8":
        pytest.skip("one is enough")
    workload.check(lambda **inputs: tuple(2 * x for x in SPEC.reference(**inputs))).raise_for_status()
"""


def run(tmp_path: Path, text: str, *words: str) -> str:
    (tmp_path / "test_mine.py").write_text(text)
    command = ["pytest", "-q", "-p", "no:cacheprovider", *words, str(tmp_path)]
    done = forked_command.run(command, {**os.environ}, tmp_path, script=forked_command.MODULE)
    return done.stdout + done.stderr


def test_each_workload_is_a_case(tmp_path: Path) -> None:
    said = run(tmp_path, TEST, "-rf")
    assert "test_wrong[batch_8]" in said
    assert "INCORRECT_NUMERICAL" in said
    assert "1 failed" in said
    assert "test_right" not in said.split("short test summary")[1]


def test_wrong_use_is_told(tmp_path: Path) -> None:
    marker = '@pytest.mark.gdnspec("gdn_decode_k_last")\ndef test_x(): pass\n'
    assert "takes `workload`" in run(tmp_path, f"import pytest\n{marker}")
    other = '@pytest.mark.gdnspec("gdn_decode_klast")\ndef test_x(workload): pass\n'
    said = run(tmp_path, f"import pytest\n{other}")
    assert "did you mean 'gdn_decode_k_last'" in said
    assert "pytest_plugin.py" not in said, "the message, without where it was raised"
