"""The convolution and its gradients with the block sizes of a GPU: the interpreter, which the workloads of CI run in,
takes others, that nearly all sequences lie within."""

import json
import os
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

pytest.importorskip("torch")
pytest.importorskip("triton")

OUTPUTS = {
    "conv1d_prefill": ("output",),
    "conv1d_backward": ("dx", "dweight", "dbias", "dh0"),
    "conv_gates_backward": ("dx", "dconv_weight", "dconv_bias", "da", "db", "dA_log", "ddt_bias", "dh0"),
}


@pytest.mark.parametrize("batches", [1, pytest.param(120, marks=pytest.mark.thorough)])
def test_walks_of_a_gpu_compute_what_the_operators_do(batches: int, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = Path(__file__).with_name("interpreted_walks.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = forked_command.run([str(tmp_path), str(batches)], environment, script=script)
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert sorted(errors) == sorted(f"{entry}, {name}" for entry, names in OUTPUTS.items() for name in names)
    assert max(errors.values()) < 1e-5, errors
