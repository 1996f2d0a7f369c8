"""What fused_decode_step cannot serve it refuses on the host; slots that are none reach no memory outside of pools."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from patience import PATIENCE

pytest.importorskip("torch")


def refusals(debug: bool, build: Path) -> dict[str, str]:
    environment = os.environ | {"GDNSPEC_DEBUG": "1" if debug else "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "tests/kernels/fused_decode_step/core_decode_refusals.py"), str(build)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.gpu
def test_bad_input_is_refused(tmp_path: Path) -> None:
    said = refusals(True, tmp_path)
    assert said.pop("empty batch") == said.pop("gaps between slots") == "nothing"
    assert said.pop("outside").startswith("ValueError: ")
    said.pop("changed")
    assert {name: x for name, x in said.items() if not x.startswith("ValueError: ")} == {}
    assert "kernel_width 5" in said["kernel width 5"]
    assert "does not divide" in said["heads that do not divide"]
    assert "in steps of 8" in said["conv_states in steps of one"]
    assert "twice" in said["debug: slot twice"]
    assert "by one of its slots" in said["debug: skipped by half"]

    careless = refusals(False, tmp_path)
    assert careless.pop("changed") == "[[4], [1], False]"
    harmless = {"empty batch", "gaps between slots", "outside", *(name for name in said if name.startswith("debug"))}
    assert {name for name, x in careless.items() if x == "nothing"} == harmless
