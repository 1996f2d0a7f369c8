"""What hopper_prefill cannot serve it refuses on the host; bounds that lie reach no memory outside of the tensors."""

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
    command = [sys.executable, str(ROOT / "tests/kernels/hopper_prefill/hopper_refusals.py"), str(build)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.mark.gpu
def test_bad_input_is_refused(tmp_path: Path) -> None:
    said = refusals(True, tmp_path)
    right = {name: said.pop(name) for name in list(said) if name.startswith("right")}
    assert len(right) == 5
    assert set(right.values()) == {"nothing"}
    assert len(said) > 90
    assert {name: x for name, x in said.items() if not x.startswith("ValueError: ")} == {}
    assert "int32, not int64" in said["gdn_prefill_k_last: cu_seqlens int32"]
    assert "neither GQA nor GVA" in said["gdn_prefill_k_first: k three heads"]
    assert "head_size 96 is not served: 64 and 128 are" in said["gdn_prefill_k_last: head size 96"]
    assert "v has size 128 in dimension 2, not 64" in said["gdn_prefill_k_last: v of another head size"]
    assert "multiple of 64" in said["interval 100"]
    assert "must rise" in said["debug cu_seqlens [0, 200, 70]"]
    assert "sequence 0 has 1 checkpoints" in said["debug checkpoint_cu_starts [0, 2, 3]"]

    careless = refusals(False, tmp_path)
    assert {name for name, x in careless.items() if x == "nothing"} == {
        *right, *(name for name in said if name.startswith("debug"))
    }  # fmt: skip
