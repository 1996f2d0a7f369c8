"""A kernel that is launched early begins while the one before still runs. Unless it waits, it reads now and then what
is not there yet, and no comparison of results finds that reliably. So the compiled code is asked."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

tvm_ffi = pytest.importorskip("tvm_ffi")

from gdnspec.build.loader import CUDA_FLAGS  # noqa: E402

# Launched behind the end of all before them: they need not wait.
NEVER_EARLY = {
    "cuda_decode": set(),
    "cuda_kda_decode": set(),
    "cuda_quantised": set(),
    "fused_conv_prefill": set(),
    "fused_decode_step": set(),
    "hopper_backward": {"brief", "carry", "cut", "first", "forward", "join", "prepare"},
    "hopper_prefill": {"order", "prepare"},
}


def test_solutions_that_launch_early_are_known() -> None:
    early = {
        file.parent.name
        for file in (ROOT / "solutions").glob("*/*.cu*")
        if "programmaticStreamSerialization" in file.read_text()
    }
    assert early == {*NEVER_EARLY}


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.parametrize("name", NEVER_EARLY)
def test_kernels_that_are_launched_early_wait(name: str, tmp_path: Path) -> None:
    folder = ROOT / "solutions" / name
    includes = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), folder]
    target, code = "-gencode=arch=compute_90a,code=compute_90a", tmp_path / "kernel.ptx"
    command = [
        "nvcc",
        *CUDA_FLAGS,
        target,
        "-ptx",
        *(f"-I{path}" for path in includes),
        folder / "kernel.cu",
        "-o",
        code,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    entries = re.split(r"^\.visible \.entry |^\.entry ", code.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    hasty = {entry.split("(")[0] for entry in entries if "griddepcontrol.wait" not in entry}
    short = {re.sub(r".*?\d+gdn_(\w+?)_kernel.*", r"\1", mangled) for mangled in hasty}
    assert short == NEVER_EARLY[name]
