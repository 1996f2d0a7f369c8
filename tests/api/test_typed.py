"""What a type checker of a program knows of `import gdnspec`."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import gdnspec

spec = gdnspec.definition("gdn_decode_k_last")
verdict = gdnspec.check(spec.reference, spec, suite="smoke")
reveal_type(verdict.repeat)
reveal_type(gdnspec.kernel("gdn_decode_k_last"))
gdnspec.chek
"""


@pytest.mark.thorough  # mypy reads torch: ten seconds
def test_the_interface_has_types_and_no_other_names(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "program.py"]
    done = subprocess.run(mypy, capture_output=True, text=True, cwd=tmp_path)
    assert 'note: Revealed type is "str"' in done.stdout, done.stdout + done.stderr
    assert 'note: Revealed type is "gdnspec.api.kernel.Kernel"' in done.stdout
    assert 'error: Module has no attribute "chek"; maybe "check"?' in done.stdout
    assert "Found 1 error" in done.stdout
