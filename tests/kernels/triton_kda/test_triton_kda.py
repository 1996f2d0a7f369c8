"""triton_kda makes scores in several ways, by what gates allow: each is right at every gate."""

import json
import os
from pathlib import Path

import forked_command
import pytest

pytest.importorskip("triton")


def test_scores_are_right_at_every_gate(tmp_path: Path) -> None:
    script = Path(__file__).with_name("interpreted_kda.py")
    done = forked_command.run([str(tmp_path)], os.environ | {"TRITON_INTERPRET": "1"}, script=script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 23
    for case, errors in found.items():
        assert max(errors) < 6e-3, (case, errors)
    # No quotient is taken where it might overflow: then all ways are one.
    assert found["fast, False, False"] == found["fast, False, True"]
    for kind in ("slow", "half", "16", "8", "4", "2"):
        assert found[f"{kind}, False, False"] != found[f"{kind}, False, True"]
