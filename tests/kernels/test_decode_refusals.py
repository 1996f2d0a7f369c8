"""What a decode kernel cannot serve it refuses on the host with a ValueError; it never goes out of bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT
from patience import PATIENCE

pytest.importorskip("torch")
pytest.importorskip("triton")


def refusals(solution: str, device: str, debug: bool, build: Path) -> dict[str, str]:
    environment = os.environ | {"GDNSPEC_DEBUG": "1" if debug else "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
    script = ROOT / "tests/kernels/decode_refusals.py"
    if device == "cpu":
        done = forked_command.run(
            [solution, device, str(build)], environment | {"TRITON_INTERPRET": "1"}, script=script
        )
    else:
        environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, str(script), solution, device, str(build)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("solution", "device"),
    [
        ("triton_decode", "cpu"),
        pytest.param("triton_decode", "cuda", marks=pytest.mark.gpu),
        pytest.param("cuda_decode", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_bad_input_is_refused(solution: str, device: str, tmp_path: Path) -> None:
    said = refusals(solution, device, True, tmp_path)
    assert said.pop("empty batch") == "nothing"
    said.pop("outside is skipped")
    assert len(said) > 40
    assert {name: x for name, x in said.items() if not x.startswith("ValueError: ")} == {}
    assert "slot 9" in said["debug pool: slot past the end"]
    assert "twice" in said["debug verify: slot written twice"]
    assert "another row writes" in said["debug pool: slot read that another row writes"]
    assert "q heads" not in said["gdn_decode_k_last: state float16"]
    assert "does not divide" in said["gdn_decode_k_first: q heads that do not divide"]

    careless = refusals(solution, device, False, tmp_path)
    assert careless.pop("outside is skipped") == "True"
    assert {name for name, x in careless.items() if x == "nothing"} == {
        "empty batch", *(name for name in said if name.startswith("debug"))
    }  # fmt: skip
