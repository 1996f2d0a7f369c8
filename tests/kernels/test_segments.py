"""Results are as good where a sequence is walked in segments as where it is walked as a whole, also where what is left
of a state is small beside its decay: where keys replace a large given state that does not decay."""

import json
import os
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("solution", "entry"),
    [
        pytest.param("triton_chunkwise", "kernel.py::prefill_k_last", marks=pytest.mark.thorough),
        pytest.param("triton_kda", "kernel.py::prefill_k_last", marks=pytest.mark.thorough),
        ("triton_backward", "kernel.py::backward_k_last"),
        pytest.param("triton_kda", "backward.py::backward_k_last", marks=pytest.mark.thorough),
    ],
)
def test_a_state_is_handed_on_as_well_as_it_is_walked(solution: str, entry: str, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = Path(__file__).with_name("interpreted_segments.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = forked_command.run([solution, entry, str(tmp_path)], environment, script=script)
    assert done.returncode == 0, done.stderr
    for output, errors in json.loads(done.stdout).items():
        assert errors["segments"] < 1.1 * errors["whole"], (output, errors)
